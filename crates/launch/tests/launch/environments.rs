//! Every launcher's variables, in tables: recognised, incomplete, contradictory.

use libnccl_launch::{Launch, LaunchError, Launcher};
use libnccl_test_support::random_inputs::{Random, inputs};

/// The variables of a launcher, with white space between them.
type Table = &'static str;

/// Returns the names and values of a table.
pub(crate) fn entries(table: Table) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.split_whitespace().map(|entry| entry.split_once('=').unwrap())
}

/// Torchrun 2.9.1, two nodes with two processes each, rank 3.
const TORCHRUN: Table =
    "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_NAME=default
    ROLE_RANK=3 ROLE_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True
    TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=none OMP_NUM_THREADS=1";

/// OpenMPI 4.1.4, one host with two processes, rank 1.
const OPEN_MPI: Table =
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=2 OMPI_MCA_ess_base_jobid=1266155521
    PMIX_NAMESPACE=1266155521 PMIX_RANK=1 PMIX_HOSTNAME=node1";

/// MPICH 4.0.2, one host with two processes, rank 1.
const MPICH: Table = "PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 HYDI_CONTROL_FD=7
    MPIR_CVAR_CH3_INTERFACE_HOSTNAME=node1";

/// SLURM's srun, two nodes with three tasks, rank 2.
const SLURM: Table = "SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 SLURM_NODEID=1
    SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=gpu[07,12] SLURM_STEP_NUM_NODES=2
    SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 SLURM_JOB_ID=4711 SLURM_STEP_ID=0";

/// LeaderWorkerSet, a group of four pods, worker 2.
const LWS: Table = "LWS_LEADER_ADDRESS=vllm-0.vllm.default LWS_GROUP_SIZE=4 LWS_WORKER_INDEX=2";

/// Kubeflow Trainer v2, two nodes, the second.
const TRAINER: Table =
    "PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_NODE_RANK=1 PET_MASTER_ADDR=train-node-0-0.train
    PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=1";

/// A PyTorchJob of Kubeflow v1, a master and two workers, the second worker.
const PYTORCH_JOB: Table =
    "PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=3 RANK=2 PET_NNODES=3
    PET_NODE_RANK=2 PET_NPROC_PER_NODE=1";

/// JobSet: Kubernetes sets the index, and the manifest the rest.
const JOB_SET: Table = "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 MASTER_ADDR=train-workers-0-0.train";

/// `nccl run`, two processes, rank 0, second attempt.
const NCCL_RUN: Table =
    "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=40001
    TORCHELASTIC_RESTART_COUNT=1 LIBNCCL_RUN_ID=f00d";

const BY_HAND: Table = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=29500";

/// Returns the table with changes: a value of `None` removes a variable.
fn change(
    table: Table,
    changes: &[(&'static str, Option<&'static str>)],
) -> Vec<(&'static str, &'static str)> {
    let is_changed = |name: &str| changes.iter().any(|(changed, _)| *changed == name);
    let kept = entries(table).filter(|(name, _)| !is_changed(name));
    kept.chain(changes.iter().filter_map(|(name, value)| Some((*name, (*value)?)))).collect()
}

#[track_caller]
fn error_of(variables: Vec<(&'static str, &'static str)>) -> String {
    match Launch::from_variables(variables) {
        Err(error @ LaunchError::Variables { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn device_is_the_local_rank_unless_the_process_sees_one_device() {
    // Local rank 1 of 2.
    let launch = Launch::from_variables(entries(TORCHRUN)).unwrap();
    for (visible, device) in [(1, 0), (2, 1), (8, 1)] {
        assert_eq!(launch.device(visible), Ok(device), "{visible} devices");
    }
    let error = launch.device(0).unwrap_err();
    assert_eq!(error, LaunchError::Devices { ranks: 2, devices: 0 });
    assert!(error.to_string().starts_with("2 ranks, 0 devices: "), "{error}");
    let one = Launch::from_variables(entries(TRAINER)).unwrap();
    assert_eq!((one.local_size(), one.device(1)), (1, Ok(0)));
    assert!(one.device(0).unwrap_err().to_string().starts_with("1 rank, 0 devices: "));
    let variables = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=1";
    let many = Launch::from_variables(entries(variables)).unwrap();
    assert!(many.device(7).unwrap_err().to_string().starts_with("8 ranks, 7 devices: "));
    assert_eq!(many.device(8), Ok(5));
}

#[test]
fn each_launcher_is_recognised() {
    // The launcher, its variables, rank, size, local rank, local size, and the start of the rendezvous.
    type Case = (Launcher, Table, [usize; 4], &'static str);
    let cases: [Case; 10] = [
        (Launcher::Torchrun, TORCHRUN, [3, 4, 1, 2], "tcpstore://node1:29500"),
        (Launcher::OpenMpi, OPEN_MPI, [1, 2, 1, 2], "file:///"),
        (Launcher::Mpich, MPICH, [1, 2, 1, 2], "file:///"),
        (Launcher::Slurm, SLURM, [2, 3, 0, 1], "tcp://gpu07:2"),
        (Launcher::LeaderWorkerSet, LWS, [2, 4, 0, 1], "tcp://vllm-0.vllm.default:29500"),
        (Launcher::Kubeflow, TRAINER, [1, 2, 0, 1], "tcp://train-node-0-0.train:29400"),
        (Launcher::Kubeflow, PYTORCH_JOB, [2, 3, 0, 1], "tcp://job-master-0:23456"),
        (Launcher::JobSet, JOB_SET, [3, 4, 0, 1], "tcp://train-workers-0-0.train:29500"),
        (Launcher::NcclRun, NCCL_RUN, [0, 2, 0, 2], "file:///"),
        (Launcher::Variables, BY_HAND, [1, 2, 0, 1], "tcp://[fe80::1]:29500"),
    ];
    for (launcher, variables, [rank, size, local_rank, local_size], rendezvous) in cases {
        let launch = Launch::from_variables(entries(variables)).unwrap();
        assert_eq!(launch.launcher(), launcher);
        assert_eq!((launch.rank(), launch.size()), (rank, size), "{launcher}");
        assert_eq!((launch.local_rank(), launch.local_size()), (local_rank, local_size), "{launcher}");
        let found = launch.rendezvous().unwrap().to_string();
        assert!(found.starts_with(rendezvous), "{launcher}: {found}");
    }
}

#[test]
fn each_missing_variable_is_named() {
    let cases: [(Table, &[&str]); 9] = [
        (TORCHRUN, &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
        (OPEN_MPI, &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
        (OPEN_MPI, &["OMPI_COMM_WORLD_LOCAL_SIZE"]),
        (MPICH, &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
        (SLURM, &["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"]),
        (LWS, &["LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"]),
        (TRAINER, &["PET_NNODES", "PET_NODE_RANK"]),
        (JOB_SET, &["WORLD_SIZE", "MASTER_ADDR"]),
        (BY_HAND, &["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
    ];
    for (table, names) in cases {
        for name in names {
            let missing = error_of(change(table, &[(*name, None)]));
            assert!(missing.contains(&format!("{name} is not set")), "{missing}");
            // An empty value is as good as none.
            assert_eq!(error_of(change(table, &[(*name, Some(""))])), missing);
        }
    }
}

#[test]
fn invalid_values_are_named() {
    let is_no_number = |value: &str| format!("RANK is {value:?}; expected a number");
    for value in ["x", "-1", "+1", "4294967296"] {
        let error = error_of(change(BY_HAND, &[("RANK", Some(value))]));
        assert!(error.contains(&is_no_number(value)), "{error}");
    }
    let cases: [(Table, &str, &str, &str); 10] = [
        (BY_HAND, "RANK", "2", "RANK is 2, WORLD_SIZE is 2; expected a rank below the size"),
        (BY_HAND, "WORLD_SIZE", "0", "RANK is 1, WORLD_SIZE is 0; expected a rank below the size"),
        (BY_HAND, "MASTER_PORT", "65536", "MASTER_PORT is 65536; expected a port, 1 to 65535"),
        (BY_HAND, "MASTER_PORT", "0", "MASTER_PORT is 0; expected a port, 1 to 65535"),
        (BY_HAND, "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE is not set"),
        (TORCHRUN, "LOCAL_RANK", "2", "LOCAL_RANK is 2, LOCAL_WORLD_SIZE is 2; expected a rank below"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "5", "LOCAL_WORLD_SIZE is 5, WORLD_SIZE is 4; expected at most"),
        (TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE", "1", "_USE_AGENT_STORE is \"1\"; expected True"),
        (SLURM, "SLURM_NODEID", "2", "TASKS_PER_NODE is \"2,1\"; expected the number of tasks of node 2"),
        (SLURM, "SLURM_STEP_NODELIST", "gpu[", "SLURM_STEP_NODELIST is \"gpu[\"; expected a list of hosts"),
    ];
    for (table, name, value, text) in cases {
        let error = error_of(change(table, &[(name, Some(value))]));
        assert!(error.contains(text), "{error}\nexpected {text}");
    }
}

#[test]
fn given_rendezvous_is_used_and_other_texts_are_named() {
    for text in ["tcp://node1:29500", "tcp://[::1]:1", "tcpstore://10.0.0.1:65535", "file:///shared/jobs"] {
        let launch = Launch::from_variables(change(BY_HAND, &[("LIBNCCL_RENDEZVOUS", Some(text))])).unwrap();
        assert_eq!(launch.rendezvous().unwrap().to_string(), text);
    }
    const OTHERS: &str = "node1:29500;tcp://node1;tcp://:1;tcp://::1:1;tcp://a:0;tcp://a:65536;file://here;http://a:1;\
        tcp://a:-1;tcp://a b:1;tcp://tcp://a:1;tcpstore://10.0.0.256:1;tcp://[a:1]:1";
    for value in OTHERS.split(';') {
        let error = error_of(change(BY_HAND, &[("LIBNCCL_RENDEZVOUS", Some(value))]));
        assert!(
            error.contains(&format!("LIBNCCL_RENDEZVOUS is \"{value}\"; expected tcp://HOST:PORT")),
            "{error}"
        );
    }
}

#[test]
fn host_of_rank_0_that_cannot_be_one_is_an_error_at_once() {
    let long = "h".repeat(254);
    let values = [
        ". /node1/ 'node1' \"10.0.0.1\" node1:29500 10.0.0.1:29500 [::1]:29500 tcp://node1 node1/ user@node1 node1,node2",
        "node[1-2] node..1 .node1 $NODE $(hostname) nöde 10.0.0.256 10.0.0.1.2 10.0.0.+1 ::1:29500:x ::1% node1%eth0",
        &long,
    ];
    let values = values.iter().flat_map(|values| values.split(' '));
    let values = values.chain([" node1", "node1 ", "node1\n", "::1%a b"]);
    let cases = [
        (BY_HAND, "MASTER_ADDR"),
        (TORCHRUN, "MASTER_ADDR"),
        (SLURM, "MASTER_ADDR"),
        (OPEN_MPI, "MASTER_ADDR"),
        (JOB_SET, "MASTER_ADDR"),
        (LWS, "LWS_LEADER_ADDRESS"),
        (TRAINER, "PET_MASTER_ADDR"),
    ];
    for (table, name) in cases {
        for value in values.clone() {
            let kept = entries(table).filter(|(other, _)| *other != name);
            let variables =
                kept.map(|(name, value)| (name, value.to_owned())).chain([(name, value.to_owned())]);
            let error = Launch::from_variables(variables).unwrap_err().to_string();
            let expected = format!("{name} is {value:?}; expected the name or the IP address of a host");
            assert!(error.contains(&expected), "{error}\nexpected {expected}");
        }
    }
    let hosts = "localhost node-1 my_node. node1.example.org. 10.0.0.1 127.1 0.0.0.0 1.2.3.4.in-addr.arpa [fe80::1%eth0] :: ::1 \
        fe80::1%eth0.100 ::ffff:10.0.0.1";
    for value in hosts.split(' ') {
        let launch = Launch::from_variables(change(BY_HAND, &[("MASTER_ADDR", Some(value))])).unwrap();
        let is_bare = value.contains(':') && !value.starts_with('[');
        let host = if is_bare { format!("[{value}]") } else { value.into() };
        assert_eq!(launch.rendezvous().unwrap().to_string(), format!("tcp://{host}:29500"));
    }
}

#[test]
fn first_host_and_tasks_of_slurms_lists() {
    let read = |name, list| {
        Launch::from_variables(change(SLURM, &[(name, Some(list)), ("SLURM_LOCALID", Some("0"))]))
    };
    for (list, host) in [
        ("node7", "node7"),
        ("node[01-04,07],gpu5", "node01"),
        ("node[9,10]", "node9"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]-node[3,5].cluster", "rack1-node3.cluster"),
        ("node[12]", "node12"),
    ] {
        let rendezvous = read("SLURM_STEP_NODELIST", list).unwrap().rendezvous().unwrap().to_string();
        assert!(rendezvous.starts_with(&format!("tcp://{host}:2")), "{list}: {rendezvous}");
    }
    for list in ["node[", "node[]", "node[a-b]", "[1-2", "no de"] {
        let error = read("SLURM_STEP_NODELIST", list).unwrap_err().to_string();
        assert!(
            error.contains(&format!("SLURM_STEP_NODELIST is {list:?}; expected a list of hosts")),
            "{error}"
        );
    }
    // Node 1 of the job's three tasks.
    for (list, tasks) in [("2(x3),1,8", 2), ("1,2(x2)", 2), ("2,1", 1)] {
        assert_eq!(read("SLURM_STEP_TASKS_PER_NODE", list).unwrap().local_size(), tasks, "{list}");
    }
    for list in ["x", "2", "2(x", "2(x3", "2(x-1)", "(x2)"] {
        let error = read("SLURM_STEP_TASKS_PER_NODE", list).unwrap_err().to_string();
        assert!(error.ends_with(&format!("is {list:?}; expected the number of tasks of node 1")), "{error}");
    }
    let (list, node) = ("2(x4294967295),2(x4294967295)", "4294967295");
    let changes = [("SLURM_STEP_TASKS_PER_NODE", Some(list)), ("SLURM_NODEID", Some(node))];
    assert!(error_of(change(SLURM, &changes)).ends_with("expected the number of tasks of node 4294967295"));
}

#[test]
fn inner_launcher_is_recognised() {
    let inside = |inner: Table, outer: Table| {
        Launch::from_variables(entries(outer).chain(entries(inner))).unwrap().launcher()
    };
    for outer in [SLURM, LWS, TRAINER, JOB_SET, OPEN_MPI, MPICH] {
        assert_eq!(inside(TORCHRUN, outer), Launcher::Torchrun);
    }
    for outer in [SLURM, LWS, TRAINER] {
        assert_eq!(inside(OPEN_MPI, outer), Launcher::OpenMpi);
        assert_eq!(inside(MPICH, outer), Launcher::Mpich);
    }
    // Trainer v2 makes a JobSet, and srun's own PMI is no launcher beside it.
    assert_eq!(inside(TRAINER, JOB_SET), Launcher::Kubeflow);
    assert_eq!(inside("PMI_RANK=2 PMI_SIZE=3", SLURM), Launcher::Slurm);
    assert_eq!(inside("PMIX_RANK=2", SLURM), Launcher::Slurm);
}

#[test]
fn variables_of_two_ranks_are_contradictory() {
    for table in [OPEN_MPI, MPICH, SLURM, LWS] {
        let error = error_of(change(table, &[("RANK", Some("0")), ("WORLD_SIZE", Some("4"))]));
        assert!(error.contains("but RANK is 0, WORLD_SIZE is 4; expected the same"), "{error}");
    }
    let agreeing = change(SLURM, &[("RANK", Some("2")), ("WORLD_SIZE", Some("3"))]);
    assert_eq!(Launch::from_variables(agreeing).unwrap().launcher(), Launcher::Slurm);
}

#[test]
fn batch_script_without_srun_is_an_error() {
    let error = error_of(change("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_NODEID=0", &[]));
    assert!(
        error.contains("SLURM_NTASKS is 4, but SLURM_STEP_ID is not set; start the tasks with srun"),
        "{error}"
    );
}

#[test]
fn pods_with_several_processes_need_torchrun() {
    let error = error_of(change(TRAINER, &[("PET_NPROC_PER_NODE", Some("8"))]));
    assert!(error.contains("PET_NPROC_PER_NODE is 8; expected LOCAL_RANK to be set"), "{error}");
}

#[test]
fn no_variables_are_no_launcher() {
    for table in ["", "RANK=", "SLURM_NTASKS=1 SLURM_PROCID=0"] {
        let error = Launch::from_variables(entries(table)).unwrap_err();
        assert!(matches!(error, LaunchError::NoLauncher), "{error}");
        assert!(error.to_string().contains("none of RANK"), "{error}");
    }
}

#[test]
fn single_rank_needs_no_rendezvous() {
    let launch = Launch::from_variables(entries("RANK=0 WORLD_SIZE=1")).unwrap();
    assert_eq!(launch.rendezvous(), None);
    let comm = launch.communicator(&libnccl_cpu::nccl()).unwrap();
    assert_eq!((comm.size(), comm.rank()), (1, 0));
}

#[test]
fn hosts_without_an_address_of_rank_0_need_one() {
    for (table, local) in [(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), (MPICH, "MPI_LOCALNRANKS")] {
        let rank = if table == MPICH { "MPI_LOCALRANKID" } else { "OMPI_COMM_WORLD_LOCAL_RANK" };
        let spread = [(local, Some("1")), (rank, Some("0"))];
        let error = error_of(change(table, &spread));
        assert!(error.contains("MASTER_ADDR and MASTER_PORT are not set"), "{error}");
        for (name, value, found) in [
            ("LIBNCCL_RENDEZVOUS", "tcp://node1:1234", "tcp://node1:1234"),
            ("LIBNCCL_RENDEZVOUS", "file:///shared", "file:///shared"),
        ] {
            let launch =
                Launch::from_variables(change(table, &[spread[0], spread[1], (name, Some(value))])).unwrap();
            assert_eq!(launch.rendezvous().unwrap().to_string(), found);
        }
    }
}

#[test]
fn master_address_and_port_replace_slurms() {
    let variables = change(SLURM, &[("MASTER_ADDR", Some("head")), ("MASTER_PORT", Some("1234"))]);
    assert_eq!(
        Launch::from_variables(variables).unwrap().rendezvous().unwrap().to_string(),
        "tcp://head:1234"
    );
    let one_host = change(SLURM, &[("SLURM_STEP_NUM_NODES", Some("1"))]);
    let rendezvous = Launch::from_variables(one_host).unwrap().rendezvous().unwrap().to_string();
    assert!(rendezvous.starts_with("tcp://127.0.0.1:2"), "{rendezvous}");
}

#[test]
fn random_values_are_read_or_refused() {
    let tables = [TORCHRUN, OPEN_MPI, MPICH, SLURM, LWS, TRAINER, PYTORCH_JOB, JOB_SET, NCCL_RUN, BY_HAND];
    let values =
        ["", "0", "1", "2", "-1", "4294967295", "99999999999", "x", "2(x2)", "a[1-", "[", "::", "True", "é"];
    let mut random = Random(17);
    let mut below = |limit| random.below(limit);
    for _ in inputs(20_000) {
        let mut variables: Vec<_> = entries(tables[below(tables.len())]).collect();
        for _ in 0..=below(3) {
            let place = below(variables.len());
            variables[place].1 = values[below(values.len())];
        }
        match Launch::from_variables(variables) {
            Ok(launch) => {
                assert!(launch.rank() < launch.size() && launch.local_rank() < launch.local_size());
                assert!(launch.local_size() <= launch.size());
                assert_eq!(launch.rendezvous().is_none(), launch.size() == 1);
            }
            Err(LaunchError::Variables { .. } | LaunchError::NoLauncher) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
