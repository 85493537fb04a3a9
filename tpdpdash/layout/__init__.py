"""How the work is divided: Layout, validity rules, rank groups, layers → pipeline stages."""
