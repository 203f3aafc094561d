"""Charts of a page: functions from groups of runs, or from one run, to charts; None where there is nothing to show."""
