"""Interpreters, compilers and their servers work inside as outside."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from support.probes import Outcome, outside, probe_inside
from support.program import Program
from support.scripted import ScriptedEngine


def write(folder: Path, name: str, text: str) -> None:
    """Write an indented source text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))


def assert_all(found: dict[str, Outcome], expected: dict[str, str]) -> None:
    """Demand that every probe succeeded with exactly this last line."""
    wrong = {
        name: found[name]
        for name, text in expected.items()
        if not found[name].ok or found[name].text.split("|")[-1] != text
    }
    assert not wrong, wrong


POOLS = """
    import asyncio, concurrent.futures as cf, multiprocessing as mp, multiprocessing.shared_memory
    import os, subprocess, sys, tempfile, threading

    def double(n):
        return 2 * n

    if __name__ == "__main__":
        with cf.ProcessPoolExecutor(2) as pool:
            print(list(pool.map(double, range(3))))
        for method in ("fork", "spawn", "forkserver"):
            with mp.get_context(method).Pool(2) as pool:
                print(method, pool.map(double, [1, 2]))
        with mp.Manager() as manager:
            shared = manager.dict(a=1)
            print(dict(shared))
        block = mp.shared_memory.SharedMemory(create=True, size=4096)
        block.close(); block.unlink()
        queue = mp.Queue(); queue.put(5); print(queue.get())
        threads = [threading.Thread(target=double, args=(1,)) for _ in range(64)]
        [t.start() for t in threads]; [t.join() for t in threads]

        async def run():
            started = await asyncio.create_subprocess_exec("echo", "sub", stdout=subprocess.PIPE)
            return (await started.communicate())[0]
        print(asyncio.run(run()))
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory(): pass
        print("done")
"""

SERVERS = """
    import http.server, os, socket, socketserver, threading, urllib.request

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
        def log_message(self, *args): pass

    class Six(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    for kind, host, shown in ((http.server.ThreadingHTTPServer, "127.0.0.1", "127.0.0.1"),
                              (http.server.ThreadingHTTPServer, "0.0.0.0", "localhost"),
                              (Six, "::1", "[::1]")):
        with kind((host, 0), Quiet) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": .01}).start()
            url = f"http://{shown}:{server.server_address[1]}/"
            print(shown, urllib.request.urlopen(url, timeout=2).read().decode())
            server.shutdown()

    for path in ("/tmp/x.sock", "/dev/shm/x.sock", os.path.expanduser("~/x.sock"),
                 os.environ["PWD"] + "/x.sock", "\\0abstract"):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path); server.listen(); client.connect(path)
            server.accept()[0].sendall(b"hi")
            assert client.recv(9) == b"hi", path
        if path[0] == "/": os.unlink(path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0)); one.sendto(b"x", one.getsockname()); assert one.recv(1) == b"x"
    a, b = socket.socketpair(); a.sendall(b"y"); assert b.recv(1) == b"y"
    print("done")
"""


def test_python_pools_servers_and_files_work(program: Program, engine: ScriptedEngine) -> None:
    """U-07, U-08, U-10, U-11, U-13, U-43: what the standard library offers is usable."""
    space = program.workspace
    write(space, "pools.py", POOLS)
    write(space, "servers.py", SERVERS)
    write(
        space,
        "test_unit.py",
        """
        import sqlite3, unittest

        class T(unittest.TestCase):
            def test_database(self):
                for place in ("in_tree.db", "/tmp/x.db", ":memory:"):
                    with sqlite3.connect(place) as made:
                        made.execute("pragma journal_mode=wal")
                        made.execute("create table t(a)")
                        made.execute("insert into t values(1)")
        """,
    )
    found = probe_inside(
        program,
        engine,
        {
            "pools": "/usr/bin/python3 pools.py",
            "servers": "/usr/bin/python3 servers.py",
            "unittest": "/usr/bin/python3 -m unittest -q 2>&1 && echo fine",
            "look_up": "/usr/bin/python3 -c 'import socket; socket.getaddrinfo(\"x.invalid\", 80)'"
            " 2>&1 | tail -1; echo took $SECONDS; wc -c < /etc/resolv.conf",
            "json_tool": "echo '{}' | /usr/bin/python3 -m json.tool",
            "compile": "/usr/bin/python3 -m compileall -q . && echo fine",
        },
    )
    assert_all(found, dict.fromkeys(("pools", "servers"), "done"))
    assert_all(found, {"unittest": "fine", "compile": "fine", "json_tool": "{}", "look_up": "0"})
    assert "took 0" in found["look_up"].text, found["look_up"]
    assert not (space / "x.sock").exists()


def test_a_virtual_environment_of_the_workspace_runs_and_installs(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-16, U-17: every hop to the interpreter is there; its home's other contents are not.

    The tester's own interpreter is taken, over two more links, with a package installed offline.
    """
    space = program.workspace
    hops = program.base / "hops"
    hops.mkdir()
    (hops / "python3").symlink_to(Path(sys.executable).resolve())
    (program.base / "second").symlink_to(hops / "python3")
    outside(f"'{sys.executable}' -m venv --without-pip .venv", space)
    (space / ".venv/bin/python").unlink()
    (space / ".venv/bin/python").symlink_to(program.base / "second")
    (hops / "private.txt").write_text("private")
    write(space, "pools.py", POOLS)
    write(
        space,
        "pkg/pyproject.toml",
        """
        [project]
        name = "own-thing"
        version = "1"
        """,
    )
    site = f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    probes = {
        "prefix": ".venv/bin/python -c 'import sys; print(sys.prefix == sys.base_prefix)'",
        "shebang": "printf '#!%s\\nimport ssl, ctypes, sqlite3\\nprint(1)\\n' $PWD/.venv/bin/python"
        " > run && chmod +x run && ./run",
        "activate": ". .venv/bin/activate && python -c 'import sys; print(sys.prefix)'",
        "pools": ".venv/bin/python pools.py",
        "install": f"cp -r pkg {site}/ownthing && touch {site}/ownthing/__init__.py"
        " && .venv/bin/python -c 'import ownthing; print(2)'",
        "fresh": "/usr/bin/python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print(3)'",
        "hidden": f"cat {hops}/private.txt",
        "read_only": ".venv/bin/python -c 'import os, sys; open(os.__file__, \"a\")'",
    }
    twin = outside(f"cat {hops}/private.txt; {probes['prefix']}", space)
    assert twin == "privateFalse\n"
    found = probe_inside(program, engine, probes)
    expected = {"prefix": "False", "shebang": "1", "pools": "done", "install": "2", "fresh": "3"}
    assert_all(found, {**expected, "activate": str(space / ".venv")})
    assert "No such file" in found["hidden"].text
    assert "Read-only file system" in found["read_only"].text or (
        "Permission denied" in found["read_only"].text
    )


def test_node_runs_servers_workers_and_children(program: Program, engine: ScriptedEngine) -> None:
    """U-08, U-43: node listens on loopback and Unix sockets, spawns, and starts workers."""
    space = program.workspace
    write(
        space,
        "net.js",
        """
        const net = require("net"), cp = require("child_process"), fs = require("fs");
        const { Worker } = require("worker_threads");
        const wanted = ["/tmp/n.sock", { host: "127.0.0.1", port: 0 }, { host: "::1", port: 0 }];
        function serve(where) {
          return new Promise((resolve, reject) => {
            const server = net.createServer(s => s.end("hi"));
            server.on("error", reject);
            server.listen(where, () => {
              const a = server.address();
              const to = typeof a === "string" ? { path: a } : { host: a.address, port: a.port };
              net.connect(to).on("data", d => server.close(() => resolve(String(d))));
            });
          });
        }
        (async () => {
          for (const where of wanted) console.log(await serve(where));
          const out = cp.spawnSync("sh", ["-c", "cat; echo $0"], { input: "in-" });
          console.log(String(out.stdout).trim(), out.status);
          console.log(cp.execSync("node -p 1+1").toString().trim());
          const forked = cp.fork("child.js");
          console.log(await new Promise(r => forked.on("message", r)));
          const worker = new Worker("require('worker_threads').parentPort.postMessage(7)",
                                    { eval: true });
          console.log(await new Promise(r => worker.on("message", r)));
          const seen = new Promise(r => fs.watch(".", (e, name) => r(name)));
          setTimeout(() => fs.writeFileSync("watched.txt", "x"), 20);
          console.log(await seen);
          await WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));
          console.log("done"); process.exit(0);
        })();
        """,
    )
    write(space, "child.js", 'process.send("from child"); process.disconnect();')
    write(space, "package.json", '{"name": "x", "scripts": {"test": "node --test t.js"}}')
    write(
        space,
        "t.js",
        """
        require("node:test")("adds", () => require("assert").equal(1 + 1, 2));
        """,
    )
    found = probe_inside(
        program,
        engine,
        {
            "net": "node net.js",
            "npm": "npm -v && npm test --silent 2>&1 | grep -c '^# pass 1'",
            "module": "echo 'import os from \"os\"; console.log(os.homedir())' > m.mjs; node m.mjs",
        },
    )
    assert_all(found, {"net": "done", "npm": "1", "module": "/home/agent"})
    assert found["net"].text.startswith("hi|hi|hi|in-sh 0|2|from child|7|"), found["net"]


C_SOURCE = r"""
    #include <pthread.h>
    #include <semaphore.h>
    #include <spawn.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/wait.h>
    extern char **environ;
    static void *work(void *n) { return n; }
    int main(void) {
        pthread_t threads[32];
        for (long i = 0; i < 32; i++)
            if (pthread_create(&threads[i], 0, work, (void *)i)) return 1;
        for (int i = 0; i < 32; i++) pthread_join(threads[i], 0);
        pid_t pid; char *argv[] = {"true", 0}; int status;
        if (posix_spawn(&pid, "/bin/true", 0, 0, argv, environ)) return 2;
        waitpid(pid, &status, 0);
        sem_t *sem = sem_open("/s", 64 | 128, 0600, 1);
        if (sem == SEM_FAILED) return 3;
        sem_wait(sem); sem_unlink("/s");
        int shared = shm_open("/m", 2 | 64, 0600);
        if (shared < 0) return 4;
        shm_unlink("/m");
        char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        strcpy(page, "done");
        if (mprotect(page, 4096, PROT_READ | PROT_EXEC)) return 5;
        puts(page);
        return status;
    }
"""


def test_compilers_builds_and_debuggers_work(program: Program, engine: ScriptedEngine) -> None:
    """U-19, U-22, U-43: gcc, make, sanitizers, strace and gdb, inside one's own sandbox."""
    space = program.workspace
    write(space, "main.c", C_SOURCE)
    (space / "Makefile").write_text(
        "main: main.o\n\t$(CC) -pthread -o $@ $<\nclean:\n\trm -f main main.o\n.PHONY: clean\n"
    )
    found = probe_inside(
        program,
        engine,
        {
            "make": "make -s -j2 && ./main",
            "make_again": "make | grep -c 'up to date'; make -s clean && make -s && ./main",
            "sanitizer": "gcc -g -fsanitize=address,undefined -pthread -o san main.c && ./san",
            "shared": "gcc -shared -fPIC -o libx.so -x c - <<<'int f(void){return 0;}'"
            " && ls libx.so",
            "strace": "strace -f -o /tmp/t ./main && grep -o 'exited with 0' /tmp/t | sort -u",
            "gdb": "gdb -q -batch -ex run -ex 'print 40+2' ./main 2>&1 | grep -Eo 'normally|= 42'",
            "pipe": "tar cf - Makefile | gzip | gunzip | tar tf - | xargs -n1 basename",
        },
    )
    done = dict.fromkeys(("make", "make_again", "sanitizer"), "done")
    assert_all(found, {**done, "shared": "libx.so", "strace": "exited with 0", "pipe": "Makefile"})
    assert found["gdb"].text == "normally|= 42", found["gdb"]


def test_a_java_machine_compiles_forks_and_listens(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-10, U-43: a JVM runs under the filter, starts a process and meets it on loopback."""
    write(
        program.workspace,
        "Main.java",
        """
        import java.net.*;
        public class Main {
            public static void main(String[] a) throws Exception {
                if (a.length > 0) {
                    new Socket("127.0.0.1", Integer.parseInt(a[0])).getOutputStream().write(42);
                    return;
                }
                Thread t = new Thread(() -> System.out.println("thread"));
                t.start(); t.join();
                try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                    String port = Integer.toString(s.getLocalPort());
                    String[] argv = {"java", "-cp", "/tmp/out", "Main", port};
                    Process p = new ProcessBuilder(argv).inheritIO().start();
                    System.out.println(s.accept().getInputStream().read() + " " + p.waitFor());
                }
            }
        }
        """,
    )
    probes = {"java": "javac -d /tmp/out Main.java && java -cp /tmp/out Main"}
    assert_all(probe_inside(program, engine, probes), {"java": "42 0"})
