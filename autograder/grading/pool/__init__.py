"""Workers that grade, here or on a cluster, and the journal of their records."""
