//! A package index of a test's own: packages made on the spot, and a network that can fail or be slow at will.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use tempfile::TempDir;

/// Behaviour of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers.
    Serves,
    /// Answers everything but the packages themselves, whose readers wait.
    Holds,
    /// Hangs up.
    Fails,
}

/// Writes a wheel with one module, or a source package whose build backend is the test's own; says its SHA-256.
const MAKE: &str = r#"
import hashlib, io, pathlib, sys, tarfile, zipfile

kind, folder, name, text, requires = sys.argv[1:]
metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {r}\n" for r in requires.split())
folder, module = pathlib.Path(folder), name.replace("-", "_")
if kind == "wheel":
    file, info = folder / f"{module}-1.0-py3-none-any.whl", f"{module}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{module}.py", text)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    file.with_name(file.name + ".metadata").write_text(metadata)
else:
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n' \
        f'[project]\nname = "{name}"\nversion = "1.0"\n'
    file = folder / f"{module}-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for path, content in {"pyproject.toml": project, "PKG-INFO": metadata, "backend.py": text}.items():
            entry = tarfile.TarInfo(f"{module}-1.0/{path}")
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
print(hashlib.sha256(file.read_bytes()).hexdigest(), end="")
"#;

/// An index on a separate port, until the test ends.
#[derive(Debug)]
pub struct Index {
    folder: TempDir,
    address: SocketAddr,
    mood: Arc<(Mutex<Behaviour>, Condvar)>,
}

impl Index {
    /// An index without packages.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn start(mood: Behaviour) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().unwrap();
        let mood = Arc::new((Mutex::new(mood), Condvar::new()));
        let (files, shared) = (folder.path().to_owned(), Arc::clone(&mood));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (files, mood) = (files.clone(), Arc::clone(&shared));
                // Clients may hang up in the middle.
                thread::spawn(move || answer(&connection, &files, &mood));
            }
        });
        Self { folder, address, mood }
    }

    /// Address, for `index-url`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/simple", self.address)
    }

    /// Changes the behaviour; waiting requests go on.
    pub fn set(&self, mood: Behaviour) {
        *self.mood.0.lock().unwrap_or_else(PoisonError::into_inner) = mood;
        self.mood.1.notify_all();
    }

    /// Adds version 1.0 of a package: a wheel with one module of the package's name, which holds `text`. It asks for
    /// the packages in `requires`. Returns the wheel's SHA-256.
    pub fn add(&self, name: &str, text: &str, requires: &[&str]) -> String {
        make("wheel", self.folder.path(), name, text, requires)
    }
}

/// Writes version 1.0 of a package into a folder as source; `backend` is the program that builds it (PEP 517). Returns the
/// archive's SHA-256.
pub fn write_source(folder: &Path, name: &str, backend: &str) -> String {
    make("source", folder, name, backend, &[])
}

fn make(kind: &str, folder: &Path, name: &str, text: &str, requires: &[&str]) -> String {
    let mut python = Command::new("python3");
    python.args(["-c", MAKE, kind]).arg(folder).args([name, text, &requires.join(" ")]);
    let output = python.output().expect("python3 runs");
    assert!(output.status.success(), "{name} cannot be made: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a digest")
}

fn answer(mut connection: &TcpStream, files: &Path, mood: &(Mutex<Behaviour>, Condvar)) {
    let mut lines = BufReader::new(connection).lines();
    let Some(Ok(first)) = lines.next() else { return };
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    let is_package = path.ends_with(".whl");
    let held = |mood: &mut Behaviour| is_package && *mood == Behaviour::Holds;
    let now = mood.0.lock().unwrap_or_else(PoisonError::into_inner);
    let now = *mood.1.wait_while(now, held).unwrap_or_else(PoisonError::into_inner);
    if now == Behaviour::Fails {
        return;
    }
    let found = match path.strip_prefix("/simple/") {
        Some(name) => page(files, name.trim_end_matches('/')),
        None => path.strip_prefix("/files/").and_then(|name| fs::read(files.join(name)).ok()),
    };
    let (status, body) = found.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&body));
}

/// The page of one package, PEP 503 with the metadata of PEP 658.
fn page(files: &Path, name: &str) -> Option<Vec<u8>> {
    let file = format!("{}-1.0-py3-none-any.whl", name.replace('-', "_"));
    let there: PathBuf = files.join(&file);
    there.exists().then(|| format!("<a href=\"/files/{file}\" data-core-metadata=\"true\">{file}</a>").into_bytes())
}
