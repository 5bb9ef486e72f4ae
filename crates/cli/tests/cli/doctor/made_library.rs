//! `nccl doctor` with a fabricated library: it contains the names of NCCL's variables, and the test's variables control its behavior.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use serde_json::{Map, Value};

use crate::common::{assert_has, json, list, nccl, read, repository, run};
use crate::snapshot::Session;

/// The library in the directory of a session, which is the home directory as well.
struct Made(PathBuf);

impl Made {
    fn new() -> (Session, Self) {
        let session = Session::new();
        let table = json(&read(&repository().join("crates/cli/src/nccl_variables.json")));
        let names: Map<String, Value> = serde_json::from_value(table["defaults"].clone()).expect("a map");
        let names: Vec<_> = names.keys().map(|name| format!("{name:?}")).collect();
        let made = Self(session.path(""));
        let source = format!("#define NAMES {}\n{}", names.join(", "), include_str!("made.c"));
        made.compile(&source, "libnccl.so.2");
        (session, made)
    }

    fn compile(&self, source: &str, library: &str) {
        let file = self.0.join("source.c");
        fs::write(&file, source).expect("it is writable");
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&self.0.join(library), &file]), 0);
    }

    fn command(&self, arguments: &str, environment: &[(&str, &str)]) -> Command {
        let mut command = nccl(&format!("doctor {arguments}"));
        let library = self.0.join("libnccl.so.2");
        command.env_clear().env("HOME", &self.0).env("LIBNCCL_PATH", library);
        command.envs(environment.iter().copied());
        command
    }

    fn text(&self, environment: &[(&str, &str)]) -> String {
        String::from_utf8(self.command("", environment).output().expect("it starts").stdout).expect("text")
    }

    fn report(&self, environment: &[(&str, &str)]) -> Value {
        let output = self.command("--json", environment).output().expect("it starts");
        json(&String::from_utf8_lossy(&output.stdout))
    }

    /// Returns the warnings and problems as `SECTION LEVEL: TEXT -> ADVICE`, except findings that depend on other programs and on the
    /// machine's interfaces.
    fn findings(&self, environment: &[(&str, &str)]) -> Vec<String> {
        let report = self.report(environment);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let of_section = |section: &Value| -> Vec<String> {
            let findings = list(&section["findings"]).iter().filter(|finding| finding["level"] != "ok");
            let name = text(&section["name"]);
            let line = |finding: &Value| {
                let [level, found, advice] = ["level", "text", "advice"].map(|field| text(&finding[field]));
                let found = found.split("; interfaces: ").next().unwrap_or_default();
                format!("{name} {level}: {found} -> {advice}\n")
            };
            findings.map(line).collect()
        };
        let findings = list(&report["sections"]).iter().flat_map(of_section);
        findings.filter(|line| !line.contains(" copies in process")).collect()
    }

    /// Adds the findings that are not in `base`.
    fn add_findings(
        &self,
        session: &mut Session,
        title: &str,
        base: &[String],
        environment: &[(&str, &str)],
    ) {
        let found = self.findings(environment);
        let new: String = found.into_iter().filter(|line| !base.contains(line)).collect();
        session.add(title, &new);
    }
}

/// The commands of the snapshot are environments.
#[test]
fn each_variable_gives_its_finding() {
    let (session, made) = Made::new();
    let base = made.findings(&[]);
    session.replay("doctor_environments", |session, line| {
        let variables = line.strip_prefix("nccl ").expect("as the other lines");
        let variables: Vec<String> = serde_json::from_str(variables).expect("a list");
        let variables: Vec<_> = variables.iter().filter_map(|set| set.split_once('=')).collect();
        made.add_findings(session, &format!("$ {line}"), &base, &variables);
    });
}

#[test]
fn configuration_file_gives_its_findings() {
    let (mut session, made) = Made::new();
    let base = made.findings(&[]);
    let text = "# NCCL_ALGO='Ring'\nNCCL_ALGO=Tree\nNCCL_DEBUG=INFO\nNCCL_SOCKET_FAMILY = AF_INET\nnonsense\nNCCL_PROTO=LL\n\
                NCCL_NET_PLUGIN=\"none\"\nexport NCCL_NTHREADS=64\nNCCL_IB_TIMEOUT=20 \nNCCL_BUFFSIZE=1 # one\n";
    session.write(".nccl.conf", text);
    session.add("# .nccl.conf", text);
    made.add_findings(&mut session, "# NCCL_DEBUG=WARN", &base, &[("NCCL_DEBUG", "WARN")]);
    let (text, _) = run(&mut made.command("", &[("NCCL_DEBUG", "WARN")]), 1);
    let of_file = text.lines().filter(|line| line.contains("  ok ") && line.contains(".nccl.conf"));
    session.add("# ok", &of_file.map(|line| format!("{line}\n")).collect::<String>());
    let named = [("NCCL_CONF_FILE", "~/mine.conf")];
    made.add_findings(&mut session, "# NCCL_CONF_FILE=~/mine.conf", &base, &named);
    session.check("doctor_configuration_file");
}

/// NVML reports the states of the fabric of four GPUs: none, registered, refused, and not registered yet.
#[test]
fn gpu_that_is_not_registered_with_its_fabric_is_named_and_so_is_a_driver_that_crashes() {
    let (mut session, made) = Made::new();
    let base = made.findings(&[]);
    made.compile(include_str!("nvml.c"), "libnvidia-ml.so.1");
    let directory = made.0.display().to_string();
    made.add_findings(&mut session, "# With NVML", &base, &[("LD_LIBRARY_PATH", &directory)]);
    let abort = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n";
    made.compile(abort, "libcuda.so.1");
    let (text, _) = run(&mut made.command("", &[("LD_LIBRARY_PATH", &directory)]), 1);
    let problem = "\n  problem  libcuda.so.1 cannot be loaded: the process ended with signal: 6 (SIGABRT)\n";
    let warning = "library\n  warning  no library was examined, as the driver ended the process";
    assert_has(&text, &[warning, problem]);
    session.check("doctor_fabric");
}

#[test]
#[ignore = "waits for the time limit of the doctor, 20 s"]
fn library_that_hangs_when_it_is_loaded_is_a_problem() {
    let (_session, made) = Made::new();
    let (text, _) = run(&mut made.command("", &[("TEST_START", "hang")]), 1);
    let problem = "libnccl.so.2 cannot be loaded: it took more than 20 s, and was killed\n";
    assert_has(&text, &["library\n  problem  /", problem, "           -> repair or remove /"]);
}

/// In the commands, `doctor` and `env` examine the library, with these variables and arguments.
#[test]
fn reports_have_summaries_and_values_and_no_noise() {
    let (session, _made) = Made::new();
    for command in ["doctor", "env"] {
        let script =
            format!("env -i HOME=$PWD LIBNCCL_PATH=$PWD/libnccl.so.2 $VARIABLES $NCCL {command} \"$@\"");
        session.write(command, script);
    }
    session.replay("doctor_made_library", Session::shell);
}

#[test]
fn port_of_ras_is_a_jobs_or_another_programs_or_free() {
    let (_session, made) = Made::new();
    for (reply, expected) in [
        ("SERVER PROTOCOL 2\n", "  ok       an NCCL job listens at "),
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "something accepts connections and does not respond as NCCL's RAS\n",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut question = [0; 18];
            stream.read_exact(&mut question).and_then(|()| stream.write_all(reply.as_bytes()))
        });
        assert_has(&made.text(&[("NCCL_RAS_ADDR", &address)]), &[expected]);
        serve.join().expect("no panic").expect("a question");
        let free = format!("  ok       {address} is free\n");
        assert_has(&made.text(&[("NCCL_RAS_ADDR", &address)]), &[&free]);
    }
}

/// The doctor reports everything that it can find out without /proc.
#[test]
#[ignore = "needs mount namespaces of an own user"]
fn doctor_without_proc_reports_missing_data() {
    let script = format!("mount -t tmpfs tmpfs /proc && exec {} doctor", crate::common::NCCL);
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
    if !unshare.output().is_ok_and(|output| output.stdout.starts_with(b"library")) {
        println!("skipped: doctor_without_proc_reports_missing_data, which needs mount namespaces");
        return;
    }
    let (text, _) = run(&mut unshare, 1);
    let reason = "/proc/self/exe cannot be started: No such file or directory (os error 2)\n";
    assert_has(&text, &[&format!("\n  warning  no library was examined, as {reason}"), "\nlimits\n"]);
    assert!(!text.contains("  problem  "), "{text}");
    assert!(text.ends_with("it is not known whether a job would start here\n"), "{text}");
}
