"""A submission in a notebook: a card of text and inline SVG that is live; its last state stays in the saved file."""
