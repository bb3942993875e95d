//! Imports inside the sandbox: real packages from the index, and the parts of a machine that they rely on (processes,
//! threads, semaphores, temporary files, a user with a name, time zones, certificates, locales).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::probe::{self, assert_found};
use omni_tests::{Node, NodeBuilder};
use serde_json::json;

/// Importable by children that are spawned and not forked: their functions are found by name.
const WORK: &str = r#"
def square(number):
    return number * number

def put(queue, number):
    queue.put(square(number))

def crunch(seed):
    import numpy
    return float(numpy.random.default_rng(seed).random(1000).sum()) > 0
"#;

fn node() -> NodeBuilder {
    Node::builder().model(
        "plain",
        &[
            ("model.py", probe::MODEL),
            ("work.py", WORK),
            ("omni.toml", "schema = 1\n[resources]\nmemory = \"1GiB\"\n[timeouts]\nrequest = \"5m\"\n"),
        ],
    )
}

#[test]
fn packages_of_the_index_do_their_work() {
    let requirements = "numpy==2.4.6\npandas==3.0.6\nonnxruntime==1.30.0\npillow==13.0.0\ntokenizers==0.23.3\n";
    let overrides = "huggingface-hub ; sys_platform == 'never'\n";
    let manifest = "schema = 1\n[resources]\nmemory = \"1GiB\"\n[timeouts]\nrequest = \"10m\"\n";
    let node = Node::builder()
        .model(
            "science",
            &[
                ("model.py", probe::MODEL),
                ("work.py", WORK),
                ("omni.toml", manifest),
                ("requirements.txt", requirements),
                ("overrides.txt", overrides),
            ],
        )
        .start();
    let code = r#"
import io, multiprocessing, subprocess, warnings
warnings.simplefilter("error")
import numpy, onnxruntime, pandas, PIL.Image, PIL.ImageDraw, PIL.ImageFont, tokenizers, tokenizers.models, tokenizers.pre_tokenizers
import work
matrix = numpy.arange(250000, dtype=float).reshape(500, 500) / 250000
tell(numpy=bool(numpy.allclose(numpy.linalg.inv(matrix + numpy.eye(500)) @ (matrix + numpy.eye(500)), numpy.eye(500))))

frame = pandas.DataFrame({"day": pandas.date_range("2024-03-30", periods=3, tz="Europe/Berlin"), "n": [1, 2, 3]})
frame.to_csv("/tmp/frame.csv", index=False)
tell(pandas=[int(pandas.read_csv("/tmp/frame.csv", parse_dates=["day"])["n"].sum()), str(frame["day"][2])])

picture = PIL.Image.new("RGB", (64, 32), "white")
PIL.ImageDraw.Draw(picture).text((2, 2), "omni", font=PIL.ImageFont.load_default(), fill="black")
out = io.BytesIO()
picture.resize((32, 16)).save(out, "JPEG")
tell(pillow=[PIL.Image.open(io.BytesIO(out.getvalue())).size, len(picture.getcolors()) > 1])

words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "cow": 1, "?": 2}, unk_token="?"))
words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tell(tokenizers=[encoding.ids for encoding in words.encode_batch(["a cow", "a dog"])])

# y = x + x as an ONNX model, in protobuf by hand: a tag, a length and the bytes of each field.
def field(number, value):
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value
def tensor(name):
    shape = field(2, field(1, field(1, 3)))
    return field(1, name) + field(2, field(1, field(1, 1) + shape))
add = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "Add")
graph = field(1, add) + field(2, "double") + field(11, tensor("x")) + field(12, tensor("y"))
model = field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
tell(onnxruntime=session.run(None, {"x": numpy.array([1, 2, 4], numpy.float32)})[0].tolist())

done = subprocess.run([sys.executable, "-W", "error", "-c", "import numpy, pandas, onnxruntime, PIL.Image, tokenizers; print(numpy.ones(3).sum())"], capture_output=True, text=True)
tell(child=[done.returncode, done.stdout])
with multiprocessing.get_context("spawn").Pool(2) as pool:
    tell(pool=pool.map(work.crunch, range(4)))
tell(threads=os.environ["OMP_NUM_THREADS"])
"#;
    let expected = json!({
        "numpy": true, "pandas": [6, "2024-04-01 00:00:00+02:00"], "pillow": [[32, 16], true],
        "tokenizers": [[0, 1], [0, 2]], "onnxruntime": [2.0, 4.0, 8.0], "child": [0, "3.0\n"],
        "pool": [true, true, true, true], "threads": "2",
    });
    assert_found(&node, "science", code, &expected);
    node.stop();
}

#[test]
fn processes_threads_and_what_they_share() {
    let node = node().start();
    let code = r#"
import asyncio, concurrent.futures, multiprocessing, multiprocessing.shared_memory, queue, subprocess, threading, warnings
warnings.simplefilter("error")
import work
for method in ("fork", "spawn", "forkserver"):
    def tried():
        kind = multiprocessing.get_context(method)
        answers = kind.Queue()
        child = kind.Process(target=work.put, args=(answers, 7))
        child.start()
        answer = answers.get(timeout=60)
        child.join()
        with kind.Pool(3) as pool:
            return [answer, child.exitcode, sum(pool.map(work.square, range(100)))]
    attempt(method, tried)
def manager():
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        return shared.copy()
attempt("manager", manager)
def semaphore():
    lock, value = multiprocessing.Semaphore(2), multiprocessing.Value("i", 0)
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    block.buf[:5] = b"cow\0\0"
    other = multiprocessing.shared_memory.SharedMemory(name=block.name)
    seen = bytes(other.buf[:3]).decode()
    other.close()
    block.close()
    block.unlink()
    return [lock.acquire(timeout=5), value.value, seen]
attempt("shared memory", semaphore)
attempt("futures", lambda: [list(pool.map(work.square, range(5))) for pool in
    (concurrent.futures.ThreadPoolExecutor(4), concurrent.futures.ProcessPoolExecutor(2))])
def threads():
    done = queue.SimpleQueue()
    crowd = [threading.Thread(target=done.put, args=(number,)) for number in range(100)]
    for thread in crowd: thread.start()
    for thread in crowd: thread.join()
    return done.qsize()
attempt("threads", threads)
async def children():
    async def one(number):
        child = await asyncio.create_subprocess_exec("sh", "-c", f"echo {number}; exit {number}", stdout=asyncio.subprocess.PIPE)
        said, _ = await child.communicate()
        return [said.decode().strip(), child.returncode]
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    nothing = await reader.read()
    writer.close()
    server.close()
    resolved = await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    return [await asyncio.gather(*(one(number) for number in range(3))), nothing.decode(), len(resolved) > 0]
attempt("asyncio", lambda: asyncio.run(children()))
attempt("shell", lambda: subprocess.check_output("echo $((6 * 7)) | tr 4 5 && ls / | head -1", shell=True, text=True).split())
attempt("left", lambda: [os.waitpid(-1, os.WNOHANG)])
tell(shm=os.listdir("/dev/shm"))
"#;
    let pooled = json!([49, 0, 328_350]);
    let expected = json!({
        "fork": pooled, "spawn": pooled, "forkserver": pooled, "manager": {"a": 1},
        "shared memory": [true, 0, "cow"], "futures": [[0, 1, 4, 9, 16], [0, 1, 4, 9, 16]], "threads": 100,
        "asyncio": [[["0", 0], ["1", 1], ["2", 2]], "", true], "shell": ["52", "bin"], "left": [[0, 0]], "shm": [],
    });
    assert_found(&node, "plain", code, &expected);
    node.stop();
}

#[test]
fn time_zones_certificates_locales_and_users_are_there() {
    let node = node().start();
    let code = r#"
import ctypes.util, datetime, getpass, grp, locale, mimetypes, pathlib, platform, pwd, random, socket, sqlite3, ssl, tempfile, time, uuid, zoneinfo
tell(user=getpass.getuser(), entry=pwd.getpwuid(os.getuid()).pw_name, group=grp.getgrgid(os.getgid()).gr_name)
home = pathlib.Path.home()
tell(home=[str(home), os.path.expanduser("~") == str(home), (home / "written").write_text("x")])
with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as loose:
    tell(temporary=[file.write(b"x"), os.listdir(folder), tempfile.gettempdir(), loose.write(b"x")])
def executable():
    path = pathlib.Path("/tmp/script")
    path.write_text("\x23!/bin/sh\necho ran\n")
    path.chmod(0o755)
    return __import__("subprocess").check_output([path], text=True)
attempt("executable /tmp", executable)
noon = datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("America/New_York"))
tell(zone=noon.astimezone(zoneinfo.ZoneInfo("Asia/Tokyo")).isoformat(), local=time.tzname[0] != "")
context_of_tls = ssl.create_default_context()
tell(certificates=context_of_tls.cert_store_stats()["x509_ca"] > 50, verifies=context_of_tls.verify_mode.name)
locale.setlocale(locale.LC_ALL, "")
tell(locale=locale.getlocale()[1], encoding=[sys.getfilesystemencoding(), sys.stdout.encoding, locale.getpreferredencoding()])
tell(host=socket.gethostname(), localhost=socket.gethostbyname("localhost"), own=socket.gethostbyname(socket.gethostname()).startswith("127."))
tell(service=socket.getservbyname("https"), type=mimetypes.guess_type("x.png")[0])
tell(random=[len(os.urandom(8)), len(uuid.uuid4().hex), 0 <= random.SystemRandom().random() < 1, len(open("/dev/urandom", "rb").read(4))])
tell(devices=[open("/dev/zero", "rb").read(2) == bytes(2), open("/dev/null", "w").write("x")])
attempt("full", lambda: open("/dev/full", "wb", buffering=0).write(b"x"))
database = sqlite3.connect(context.cache_dir / "kept.db")
database.execute("create table t (x)")
database.execute("pragma journal_mode = wal").fetchall()
database.execute("insert into t values (42)")
database.commit()
tell(sqlite=database.execute("select x from t").fetchone()[0])
tell(processors=os.cpu_count() >= 1, affinity=len(os.sched_getaffinity(0)) >= 1, online=open("/sys/devices/system/cpu/online").read() != "")
tell(library=ctypes.util.find_library("c"), machine=platform.machine() == os.uname().machine)
tell(standard=[os.path.exists(path) for path in ("/dev/fd/1", "/dev/stdout", "/var/tmp", "/proc/self/status", "/bin/sh", "/usr/bin/env")])
tell(path=[shutil_found is not None for shutil_found in map(__import__("shutil").which, ("python", "python3", "sh", "env"))])
"#;
    let expected = json!({
        "user": "model", "entry": "model", "group": "model", "home": ["/tmp/home", true, 1],
        "temporary": [1, [], "/tmp", 1], "executable /tmp": "ran\n", "zone": "2024-07-02T01:00:00+09:00", "local": true,
        "certificates": true, "verifies": "CERT_REQUIRED", "locale": "UTF-8",
        "encoding": ["utf-8", "utf-8", "UTF-8"], "host": "plain", "localhost": "127.0.0.1", "own": true,
        "service": 443, "type": "image/png", "random": [8, 32, true, 4], "devices": [true, 1], "full": "ENOSPC",
        "sqlite": 42, "processors": true, "affinity": true, "online": true, "library": "libc.so.6", "machine": true,
        "standard": [true, true, true, true, true, true], "path": [true, true, true, true],
    });
    assert_found(&node, "plain", code, &expected);
    node.stop();
}
