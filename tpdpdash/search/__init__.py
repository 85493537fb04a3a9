"""Which layouts there are, which are the best, and why the others lost or were refused."""
