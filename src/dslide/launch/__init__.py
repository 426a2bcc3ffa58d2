"""Starting and supervising the ranks of a job."""
