"""Workers that grade, on this machine or on a cluster, and the journal of their records."""
