"""Everything about processes: the zygote's client, channels, commands, watching. Trusted side.

Theory of operation: the process tree
-------------------------------------
    supervisor                  the only process with secrets, network and a person
    └─ zygote                   exec'ed clean, one thread; forks on orders, judges nothing
       ├─ init of agent a1      pid 1 of its own pid namespace; runs the agent's loop; cannot exec
       ├─ init of agent a2      a subagent is a sibling here; who is whose parent is known above
       └─ init of command c1    pid 1 of a pid namespace inside a1's; forks, waits, reports
          └─ bash …             and whatever it starts

Who forks. Only the zygote forks, and only when an order with a whole plan asks for it. The
supervisor never forks with secrets in its memory, and a child cannot start a sibling.

Who kills. Always the supervisor, always by pidfd, always the init: a pid may be taken by a stranger
in between, a pidfd may not. SIGKILL of a pid namespace's init kills every process of the namespace
(pid_namespaces(7)): double forks, setsid and nohup change parents and sessions, not namespaces.
Process groups are never used; every escapee of a group that was tried survived `killpg`.

What is proof. The pidfd of an init becomes readable when its namespace is empty and not before
(pidfd_open(2), zap_pid_ns_processes). `wait_dead` waits for exactly that. The end of a pipe proves
nothing: a daemon may hold it open, a living process may close it. So nothing here waits for an end
of file alone, and a slot or a descriptor is given back on proof of death, on every path.

What descends by itself. Each init has PDEATHSIG, so the death of the zygote, and through it that of
the supervisor, empties the tree within milliseconds even when nobody is left to kill.

Descriptors. An agent is held by a pidfd, two pipes of frames and one of log; a command by a pidfd,
two pipes of output and one of status. A channel closes its own two; `perform` closes all four of a
command; nobody else closes them. Everything is close-on-exec and nothing is inherited.

Waiting. `channel.py` and `zygote.py` register descriptors with the loop themselves, once for
their life, because frames pass there thousands of times; `command.py` waits through anyio.
"""
