//! `nccl doctor` with a library that is made for it: it has the names of NCCL's variables, and does what variables of the test ask for.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::{Map, Value};

use crate::common::{assert_has, json, list, nccl, read, repository, run};

/// Reads `~/.nccl.conf`, except `NCCL_PROTO`, and fails with an interface `ib0`.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int asks(const char *variable, const char *value) {
    return getenv(variable) && !strcmp(getenv(variable), value);
}
__attribute__((constructor)) static void start(void) {
    if (asks("TEST_START", "abort")) abort();
    if (asks("TEST_START", "hang")) pause();
}
__attribute__((destructor)) static void end(void) { if (asks("TEST_END", "abort")) abort(); }
int ncclGetVersion(int *version) { *version = 23203; return 0; }
int ncclGetUniqueId(void *id) {
    char path[4096], line[4096];
    snprintf(path, sizeof path, "%s/.nccl.conf", getenv("HOME"));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || !value) continue;
        *value++ = 0;
        if (strcmp(line, "NCCL_PROTO")) setenv(line, value, 0);
    }
    return asks("NCCL_SOCKET_IFNAME", "ib0") ? 2 : 0;
}
const char *const texts[] = {"NCCL version 2.32.3+cuda12.9",
"#;

/// The library in a directory, which is the home directory as well.
struct Made(tempfile::TempDir);

impl Made {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [source, library] = ["nccl.c", "libnccl.so.2"].map(|name| directory.path().join(name));
        let table = json(&read(&repository().join("crates/cli/src/nccl_variables.json")));
        let names: Map<String, Value> = serde_json::from_value(table["defaults"].clone()).expect("a map");
        let names: String = names.keys().map(|name| format!("{name:?}, ")).collect();
        fs::write(&source, format!("{SOURCE}{names}}};\n")).expect("it is writable");
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]), 0);
        Self(directory)
    }

    fn command(&self, arguments: &str, environment: &[(&str, &str)]) -> Command {
        let mut command = nccl(&format!("doctor {arguments}"));
        let library = self.0.path().join("libnccl.so.2");
        command.env_clear().env("HOME", self.0.path()).env("LIBNCCL_PATH", library);
        command.envs(environment.iter().copied());
        command
    }

    fn report(&self, environment: &[(&str, &str)]) -> Value {
        json(&String::from_utf8_lossy(
            &self.command("--json", environment).output().expect("it starts").stdout,
        ))
    }

    /// Returns the findings that are not fine, as `SECTION LEVEL: TEXT -> ADVICE`.
    fn findings(&self, environment: &[(&str, &str)]) -> Vec<String> {
        let report = self.report(environment);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let of_section = |section: &Value| -> Vec<String> {
            let findings = list(&section["findings"]).iter().filter(|finding| finding["level"] != "ok");
            let name = text(&section["name"]);
            let line = |finding: &Value| {
                let [level, found, advice] = ["level", "text", "advice"].map(|field| text(&finding[field]));
                format!("{name} {level}: {found} -> {advice}")
            };
            findings.map(line).collect()
        };
        let findings = list(&report["sections"]).iter().flat_map(of_section);
        // Other programs of the machine.
        findings.filter(|line| !line.contains(" copies in process")).collect()
    }
}

/// Environments: each variable, and the level and parts of the only finding that it gives in addition, separated by ` .. `; none if it
/// is fine.
const ENVIRONMENTS: [&[(&str, &str)]; 6] = [
    &[
        ("NCCL_DEBUG=\"INFO\"", "warning: NCCL_DEBUG=\"\\\"INFO\\\"\" (environment): the quotes"),
        ("NCCL_PROTO=Simple ", "warning: NCCL_PROTO=\"Simple \" (environment): the spaces"),
        ("NCCL_ALGO=Tree\r", "warning: NCCL_ALGO=\"Tree\\r\" (environment): the carriage return"),
        ("NCCL_P2P_DISABLE=\"1\"", "warning: NCCL_P2P_DISABLE=\"\\\"1\\\"\" (environment): the quotes"),
        (
            "NCCL_SOCKET_FAMILY=ipv6",
            "warning: NCCL_SOCKET_FAMILY=ipv6 (environment): NCCL ignores this value",
        ),
        ("NCCL_P2P_LEVEL=NVLNK", "warning: NCCL_P2P_LEVEL=NVLNK (environment): NCCL ignores this value"),
        ("NCCL_LAUNCH_MODE=PARALEL", "warning: NCCL_LAUNCH_MODE=PARALEL (environment): NCCL ignores this"),
        (
            "NCCL_DEBUG_FILE=/nonexistent/dir/x.log",
            "warning: NCCL_DEBUG_FILE= .. nothing can be written to /nonexistent/dir: No such",
        ),
        ("NCCL_BUFFSIZE=4M", "warning: NCCL_BUFFSIZE=4M (environment): NCCL reads it as 4"),
        ("NCCL_IB_TIMEOUT=99", "warning: NCCL_IB_TIMEOUT=99 (environment): expected 1 to 31"),
        ("NCCL_NTHREADS=100", "warning: NCCL_NTHREADS=100 .. not a multiple of 32"),
        ("NCCL_WORK_FIFO_BYTES=3", "warning: NCCL_WORK_FIFO_BYTES=3 .. not a power of 2"),
        ("NCCL_HOSTID=", "warning: NCCL_HOSTID= .. an empty value makes NCCL take all machines for one"),
        ("NCCL_TOPO_FILE=", "warning: NCCL_TOPO_FILE= .. an empty value is the name of a file"),
        ("NCCL_GRAPH_FILE=/nonexistent.xml", "problem: NCCL_GRAPH_FILE=/nonexistent.xml .. no such file"),
        ("NCCL_MIN_NCHANNELS=8", "warning: NCCL_MIN_NCHANNELS=8 (environment) is above NCCL_MAX_NCHANNELS=4"),
        ("NCCL_MAX_NCHANNELS=4", ""),
        ("NCCL_TUNER_PLUGIN=foo", "warning: NCCL_TUNER_PLUGIN=foo .. the plugin cannot be loaded"),
        (
            "NCCL_BLOCKING_WAIT=1",
            "warning: NCCL_BLOCKING_WAIT=1 .. PyTorch has retired this name -> write TORCH_",
        ),
        (
            "nccl_debug=INFO",
            "warning: nccl_debug=INFO .. does not know this variable .. -> write NCCL_DEBUG,",
        ),
        ("NCCL_SOCKET_IFNAMES=1", "warning: NCCL_SOCKET_IFNAMES=1 .. -> write NCCL_SOCKET_IFNAME,"),
        ("NCCL_P2P_DISABLED=1", "warning: NCCL_P2P_DISABLED=1 .. -> write NCCL_P2P_DISABLE,"),
        ("NCCL_DEBGU=1", "warning: NCCL_DEBGU=1 .. -> write NCCL_DEBUG,"),
        (
            "NCCL_RAS_ADDR=localhost",
            "ras warning: no address of localhost; expected a host of this network and a port",
        ),
        ("NCCL_FROBNICATION=1", "warning: NCCL_FROBNICATION=1 .. -> remove it"),
    ],
    &[
        ("NCCL_DEBUG=WARN # quiet", "warning: NCCL_DEBUG= .. the comment is part of the value"),
        ("NCCL_ALGO=Ringg", "warning: NCCL_ALGO=Ringg .. NCCL ignores \"Ringg\", which is unknown"),
        ("NCCL_PROTO=^LL256,LL", "warning: NCCL_PROTO= .. NCCL ignores \"LL256\""),
        ("NCCL_P2P_LEVEL=9", "warning: NCCL_P2P_LEVEL=9 .. NCCL reads a number above 4 as SYS"),
        ("NCCL_P2P_DISABLE=true", "warning: NCCL_P2P_DISABLE=true .. NCCL reads it as 0"),
        ("NCCL_BUFFSIZE=010000000", "warning: NCCL_BUFFSIZE=010000000 .. NCCL reads it as 2097152"),
        ("NCCL_TOPO_FILE=/etc/topology.xml", "warning: NCCL_TOPO_FILE=/etc/topology.xml .. no such file"),
        ("NCCL_GRAPH_FILE=", "problem: NCCL_GRAPH_FILE= .. an empty value is the name of a file"),
        (
            "NCCL_RAS_ADDR=255.255.255.255:9",
            "ras warning: 255.255.255.255:9 cannot be reached, so it is not known",
        ),
        ("NCCL_SOKET_IFNAME=1", "warning: NCCL_SOKET_IFNAME=1 .. -> write NCCL_SOCKET_IFNAME,"),
    ],
    &[
        ("NCCL_DEBUG=INF0", "warning: NCCL_DEBUG=INF0 .. NCCL ignores this value"),
        ("NCCL_ALGO=ring;allredduce:tree", "warning: NCCL_ALGO= .. NCCL ignores \"allredduce\""),
        ("NCCL_RAS_ADDR=[2001:db8::1]:9", "ras warning: [2001:db8::1]:9 cannot be reached"),
        ("NCCL_P2P_DISABLE=01", "warning: NCCL_P2P_DISABLE=01 .. GPUs do not reach each other directly"),
        (
            "NCCL_BUFFSIZE=99999999999999999999",
            "warning: NCCL_BUFFSIZE= .. the number is too large, so NCCL uses",
        ),
        (
            "NCCL_SOCKET_IFNAME=ib0",
            "network problem: with NCCL_SOCKET_IFNAME=ib0 (environment), the library makes no",
        ),
        ("TEST_START=", "library problem: no unique id can be made: "),
    ],
    &[
        ("NCCL_BUFFSIZE=1", "warning: NCCL_BUFFSIZE=1 .. expected 65536 to 1073741824"),
        (
            "TEST_END=abort",
            "library warning: .. did not end normally after the unique id: .. signal: 6 (SIGABRT)",
        ),
    ],
    &[
        ("NCCL_DEBUG=info", ""),
        ("NCCL_ALGO=ring;allreduce:tree,CollNetDirect", ""),
        ("NCCL_PROTO=^LL", ""),
        ("NCCL_P2P_LEVEL=SYS", ""),
        ("NCCL_BUFFSIZE=0x400000", ""),
        ("NCCL_NTHREADS=256", ""),
        ("NCCL_DEBUG_FILE=/dev/shm/x.%h.%p", ""),
        ("NCCL_RAS_ENABLE=0", ""),
        ("TORCH_NCCL_BLOCKING_WAIT=1", ""),
        ("nccl_of_another_program=1", ""),
        ("NCCL_VERSION=1", ""),
        ("NCCL_TESTS_DEVICE=1", ""),
        ("LIBNCCL_CPU_TIMEOUT=1", ""),
    ],
    &[("NCCL_BUFFSIZE=-2", ""), ("NCCL_DEBUG_FILE=relative", "")],
];

/// Checks that the lines that are not in `base` are these, each given by its parts.
#[track_caller]
fn assert_new(found: &[String], base: &[String], expected: &[&str]) {
    let found: Vec<_> = found.iter().filter(|line| !base.contains(line)).collect();
    let has = |line: &String, parts: &str| {
        let mut rest = line.as_str();
        parts.split(" .. ").all(|part| rest.split_once(part).map(|(_, after)| rest = after).is_some())
    };
    for parts in expected {
        assert_eq!(found.iter().filter(|line| has(line, parts)).count(), 1, "{parts}: {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn each_variable_gives_its_finding() {
    let made = Made::new();
    let base = made.findings(&[]);
    for environment in ENVIRONMENTS {
        let variables: Vec<_> = environment.iter().filter_map(|(set, _)| set.split_once('=')).collect();
        let expected: Vec<_> =
            environment.iter().map(|(_, parts)| *parts).filter(|parts| !parts.is_empty()).collect();
        assert_new(&made.findings(&variables), &base, &expected);
    }
}

#[test]
fn configuration_file_gives_its_findings() {
    let made = Made::new();
    let base = made.findings(&[]);
    let text = "# NCCL_ALGO='Ring'\nNCCL_ALGO=Tree\nNCCL_DEBUG=INFO\nNCCL_SOCKET_FAMILY = AF_INET\nnonsense\nNCCL_PROTO=LL\n\
                NCCL_NET_PLUGIN=\"none\"\nexport NCCL_NTHREADS=64\nNCCL_IB_TIMEOUT=20 \nNCCL_BUFFSIZE=1 # one\n";
    fs::write(made.0.path().join(".nccl.conf"), text).expect("it is writable");
    let environment = [("NCCL_DEBUG", "WARN")];
    let expected = [
        "files warning: .. NCCL_SOCKET_FAMILY =\" AF_INET\": the spaces are part of the name",
        "files warning: .. NCCL_SOCKET_FAMILY =\" AF_INET\": the spaces are part of the value",
        "files warning: .. NCCL ignores the line \"nonsense\"",
        "files warning: .. NCCL 2.32.3 does not read NCCL_PROTO from it",
        "files warning: .. the quotes are part of the value",
        "files warning: .. export NCCL_NTHREADS=\"64\": the spaces are part of the name",
        "files warning: .. NCCL_BUFFSIZE=\"1 # one\": the comment is part of the value",
    ];
    assert_new(&made.findings(&environment), &base, &expected);
    let (text, _) = run(&mut made.command("", &environment), 1);
    assert_has(
        &text,
        &[
            ".nccl.conf sets NCCL_ALGO=Tree, ",
            ".nccl.conf: NCCL_DEBUG has no effect; its value is from environment\n",
        ],
    );
    let named = made.findings(&[("NCCL_CONF_FILE", "~/mine.conf")]);
    assert_new(&named, &base, &["files warning: NCCL_CONF_FILE=~/mine.conf: there is no such file"]);
}

#[test]
fn env_lists_values_of_the_environment_of_a_file_and_defaults() {
    let made = Made::new();
    fs::write(made.0.path().join(".nccl.conf"), "NCCL_ALGO==Ring\nNCCL_DEBUG=WARN\n")
        .expect("it is writable");
    let mut command = nccl("env");
    command.env_clear().env("HOME", made.0.path()).env("LIBNCCL_PATH", made.0.path().join("libnccl.so.2"));
    let (text, _) = run(command.envs([("NCCL_DEBUG", "INFO"), ("NCCL_MINE", "1")]), 0);
    let file = made.0.path().join(".nccl.conf");
    let of_file = format!("\nNCCL_ALGO==Ring  ({})\n", file.display());
    assert_has(
        &text,
        &[
            "# NCCL 2.32.3, ",
            &of_file,
            "\nNCCL_BUFFSIZE=-2  (default)\n",
            "\nNCCL_DEBUG=INFO  (environment)\n",
            "\nNCCL_MINE=1  (environment; unknown to this version)\n",
            "\nNCCL_PROTO=?  (default)\n",
        ],
    );
}

/// The process that loads it is another one.
#[test]
fn library_that_crashes_when_it_is_loaded_is_a_problem() {
    let made = Made::new();
    let (text, _) = run(&mut made.command("", &[("TEST_START", "abort")]), 1);
    assert_has(
        &text,
        &[
            "library\n  problem  a library cannot be loaded: the process ended with signal: 6 (SIGABRT)\n",
            "\nlimits\n",
        ],
    );
    let library = made.0.path().join("libnccl.so.2").display().to_string();
    let named = format!("--library {library} --json");
    let report = json(&run(&mut made.command(&named, &[("TEST_START", "abort")]), 1).0);
    assert_eq!(report["library"], Value::Null);
    assert_eq!(
        report["error"],
        format!("{library} cannot be loaded: the process ended with signal: 6 (SIGABRT)")
    );
    assert!(report["driver"]["loaded"].is_boolean(), "{report}");
}

#[test]
fn driver_that_crashes_is_a_problem() {
    let made = Made::new();
    let [source, driver] = ["cuda.c", "libcuda.so.1"].map(|name| made.0.path().join(name));
    let text = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n";
    fs::write(&source, text).expect("it is writable");
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]), 0);
    let directory = made.0.path().display().to_string();
    let (text, _) = run(&mut made.command("", &[("LD_LIBRARY_PATH", &directory)]), 1);
    let problem = "\n  problem  libcuda.so.1 cannot be loaded: the process ended with signal: 6 (SIGABRT)\n";
    assert_has(
        &text,
        &["library\n  warning  no library was examined, as the driver ended the process", problem],
    );
}

#[test]
#[ignore = "waits for the time limit of the doctor, 20 s"]
fn library_that_hangs_when_it_is_loaded_is_a_problem() {
    let made = Made::new();
    let (text, _) = run(&mut made.command("", &[("TEST_START", "hang")]), 1);
    let problem = "libnccl.so.2 cannot be loaded: it took more than 20 s, and was killed\n";
    assert_has(&text, &["library\n  problem  /", problem, "           -> repair or remove /"]);
}

#[test]
fn library_that_lacks_functions_of_its_version_is_a_warning_or_a_problem() {
    let made = Made::new();
    let lacks = "the library says that it is NCCL 2.32.3, and lacks ";
    for (needs, level, status) in [("2.13.4", "problem", 1), ("2.1.1", "warning", 1)] {
        let (text, _) = run(&mut made.command(&format!("--needs {needs}"), &[]), status);
        assert_has(&text, &[&format!("\n  {level:<8} {lacks}"), " functions of NCCL 2.13.4 or later: nccl"]);
    }
}

#[test]
fn text_ends_with_a_summary_and_json_has_the_documented_fields() {
    let made = Made::new();
    let environment = [("NCCL_GRAPH_FILE", "/ib0")];
    let (text, _) = run(&mut made.command("", &environment), 1);
    let advice = "\n           -> correct the name, or unset NCCL_GRAPH_FILE\n";
    assert_has(&text, &["\n  problem  NCCL_GRAPH_FILE=/ib0 ", advice]);
    let report = made.report(&environment);
    let all: Vec<_> =
        list(&report["sections"]).iter().flat_map(|section| list(&section["findings"])).collect();
    let [problems, warnings] =
        ["problem", "warning"].map(|level| all.iter().filter(|finding| finding["level"] == level).count());
    let summary = format!("{problems} problem{}, {warnings} warning", if problems == 1 { "" } else { "s" });
    assert!(text.lines().last().is_some_and(|line| line.starts_with(&summary)), "{summary}: {text}");
    assert!(text.ends_with(": a job would not start here, or not end well\n"), "{text}");
    let mut fields: Vec<_> = report.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected =
        ["advice", "driver", "error", "header_version", "library", "schema", "sections", "starts", "tried"];
    assert_eq!(fields, expected);
    assert_eq!((&report["schema"], &report["starts"]), (&1.into(), &false.into()));
    let names = list(&report["sections"]).iter().filter_map(|section| section["name"].as_str());
    let expected = "library copies driver devices advisories limits network files variables ras";
    assert_eq!(names.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn port_of_ras_is_a_jobs_or_another_programs_or_free() {
    let made = Made::new();
    for (answer, expected) in [
        ("SERVER PROTOCOL 2\n", "  ok       a job of NCCL answers at "),
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "something accepts connections and does not answer as NCCL's RAS\n",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut question = [0; 18];
            stream.read_exact(&mut question).and_then(|()| stream.write_all(answer.as_bytes()))
        });
        let text = made.command("", &[("NCCL_RAS_ADDR", &address)]).output().expect("it starts").stdout;
        assert_has(&String::from_utf8_lossy(&text), &[expected]);
        serve.join().expect("no panic").expect("a question");
        let text = made.command("", &[("NCCL_RAS_ADDR", &address)]).output().expect("it starts").stdout;
        assert_has(&String::from_utf8_lossy(&text), &[&format!("  ok       {address} is free\n")]);
    }
}

/// What can be said without /proc is said.
#[test]
#[ignore = "needs mount namespaces of an own user"]
fn doctor_without_proc_says_what_it_could_not_ask() {
    let script = format!("mount -t tmpfs tmpfs /proc && exec {} doctor", crate::common::NCCL);
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).env_clear();
    if !unshare.output().is_ok_and(|output| output.stdout.starts_with(b"library")) {
        println!("skipped: doctor_without_proc_says_what_it_could_not_ask, which needs mount namespaces");
        return;
    }
    let (text, _) = run(&mut unshare, 1);
    let reason = "/proc/self/exe cannot be started: No such file or directory (os error 2)\n";
    assert_has(&text, &[&format!("\n  warning  no library was examined, as {reason}"), "\nlimits\n"]);
    assert!(!text.contains("  problem  "), "{text}");
    assert!(text.ends_with("it is not known whether a job would start here\n"), "{text}");
}

/// The CPU backend needs no interface, and reads few of NCCL's variables.
#[test]
fn cpu_backend_has_no_finding_about_the_network_and_ignored_values() {
    let backend = libnccl_test_support::shared_object("nccl_cpu");
    let environment = [
        ("LIBNCCL_PATH", backend.as_path()),
        ("NCCL_SOCKET_IFNAME", Path::new("eth9")),
        ("NCCL_IB_HCA", Path::new("mlx5_0")),
        ("NCCL_BUFFSIZE", Path::new("4M")),
        ("LIBNCCL_CPU_STRICT", Path::new("1")),
        ("LIBNCCL_CPU_STACKS", Path::new("0")),
        ("LIBNCCL_CPU_TIMEOUT", Path::new("2.5")),
        ("LIBNCCL_CPU_WARN_AFTER", Path::new(" 0")),
        ("LIBNCCL_CPU_FAILURES", Path::new("report")),
        ("LIBNCCL_CPU_IGNORE", Path::new("race,missing-call")),
    ];
    let (text, _) = run(nccl("doctor").env_clear().envs(environment), 0);
    let (_, sections) = text.split_once("\nnetwork\n").expect("a section");
    let expected =
        "  ok       this library needs no network interface: its ranks are on one machine\nfiles\n";
    assert!(sections.starts_with(expected) && !sections.contains("  warning  "), "{text}");
}
