"""Client quotas: which there are, whom they hold for, and how long who exceeds one has to wait."""
