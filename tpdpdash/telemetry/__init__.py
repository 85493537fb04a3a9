"""What a run says about itself: records, the probe that writes them, the reader that tails them, their analysis."""
