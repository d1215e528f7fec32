# The packages of the workspace, for the scripts that install them; sourced in the root of a checkout.

# Their folders, from the workspace table of pyproject.toml.
members="$(sed -n '/^members = \[/,/^\]/s/^  "\(.*\)",$/\1/p' pyproject.toml)"
# Changes with what any of them requires or registers.
project="$(for member in $members; do cat "$member/pyproject.toml"; done | cksum)"
# Arguments of `pip install`.
editable=()
for member in $members; do editable+=(--editable "$member"); done
