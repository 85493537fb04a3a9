"""What torchrun runs: the built-in transformer under any tp × pp × dp. The only room that lives in torch."""
