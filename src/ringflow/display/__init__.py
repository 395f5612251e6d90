"""The event display: events as JSON, a page that draws them, a server for it, and the event format of Phoenix."""
