// A page that is opened from a file may not read the others for excerpts; the search then shows titles alone.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
