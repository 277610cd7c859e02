"""The pictures of the embedded tasks, drawn with NumPy and Pillow when they are needed.

All random numbers come from the generator that the caller passes, so a picture depends only on its seed. Letters are
drawn as strokes, without a font. `tools/captioned` uses the same canvas for the captioned pictures that `mini` was
trained on.
"""
