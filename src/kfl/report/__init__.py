"""What people look at: pages made from run folders, live pages, and trackers."""
