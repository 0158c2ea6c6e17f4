"""The composition root: builds every part, joins the ports. Trusted side.

ground.py    what a command stands on: settings, policies, workspace, host, secrets, engine
run.py       one task from prompt to result
execute.py   one command under the sandbox, without an agent's loop
streams.py   the standard streams of that command
look.py      commands that only look: doctor, agents, sessions, policy, config
"""
