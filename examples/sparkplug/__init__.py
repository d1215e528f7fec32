"""An edge node that speaks Sparkplug B to a realm, and what a host application makes of it."""
