"""Neural networks with enormous output layers, trained on plain CPU machines."""
