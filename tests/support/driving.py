"""A script that uses the page of `rebapl serve` as a person does: it drops an image and types."""

DRIVER = """
<script>
addEventListener("load", async () => {
  const wait = async (ready) => {
    for (let n = 0; n < 200 && !ready(); n++) await new Promise((go) => setTimeout(go, 50));
  };
  const bytes = Uint8Array.from(atob("CONTENT"), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
  at("names").value = "NAMES";
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
  await wait(() => !at("result").hidden || !at("error").hidden);
});
</script>
"""


def driven(page: str, content: str, names: str = "") -> str:
    """The page with the script in it. `content` is the image in base64, and `names` are the class names to type."""
    script = DRIVER.replace("CONTENT", content).replace("NAMES", names)
    return page.replace("</body>", script + "</body>")
