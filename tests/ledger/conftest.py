from __future__ import annotations

import pytest
from support.paper_card import PaperCard


@pytest.fixture
def card() -> PaperCard:
    """A card of 24 GiB, all of it budget, that has been read once."""
    made = PaperCard()
    made.look()
    return made
