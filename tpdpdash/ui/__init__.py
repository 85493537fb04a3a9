"""What the pages share. token and serve are free of streamlit, so that the command line can use them."""
