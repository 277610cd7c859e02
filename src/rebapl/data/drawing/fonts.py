"""Typefaces for printed glyphs: the text faces that come with matplotlib, or a folder that holds the same files."""

from functools import cache
from pathlib import Path

from PIL import ImageFont

from rebapl.errors import UserError

TEXT_FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmb10",
    "cmr10",
    "cmss10",
    "cmti10",
    "cmtt10",
)
"""The faces with Latin letters and digits; matplotlib's others hold mathematical symbols."""


@cache
def faces(folder: Path | None = None) -> tuple[Path, ...]:
    """The files of the text faces in `folder`, by default matplotlib's own; an error says which are missing."""
    if folder is None:
        import matplotlib  # late, because this is its only use and it is slow to import

        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = tuple(folder / f"{face}.ttf" for face in TEXT_FACES)
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"folder {folder} lacks the font files {', '.join(missing)}; matplotlib's fonts/ttf has them")
    return paths


@cache
def load(path: Path, size: int) -> ImageFont.FreeTypeFont:
    """A face at a size in pixels."""
    return ImageFont.truetype(path, size)
