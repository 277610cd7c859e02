"""The pictures of the embedded tasks, drawn with NumPy and Pillow when they are asked for.

All chance comes from the generator that is handed in, so a picture is a function of its seed. No font is used: letters
are strokes. `tools/captioned` draws the captioned pictures that `mini` was trained on with the same canvas.
"""
