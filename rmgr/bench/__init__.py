"""What `rmgr bench` measures, and the programs that make load for it. Only the command line imports it; it uses all that is below."""
