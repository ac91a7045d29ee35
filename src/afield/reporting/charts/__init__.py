"""Parts of the page that look closer: validation against test accuracy, gains, confusions."""
