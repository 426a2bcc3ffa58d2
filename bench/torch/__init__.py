"""`dslide.torch` beside other ways of training very many labels in PyTorch."""
