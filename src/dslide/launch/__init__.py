"""Starting the ranks of a job and supervising them; what a rank reports to its launcher, and how it exits."""
