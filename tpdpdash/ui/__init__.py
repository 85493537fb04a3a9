"""What the pages share: navigation, URL state, cached services and parts of screens."""
