//! What is preferred, and what a cgroup says.

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn the_first_that_is_known_names_the_service() {
    let all = Sources {
        service: Some(" flag "),
        env_service: Some("env"),
        cgroup: "0::/system.slice/unit.service",
        exe: "/usr/bin/exe.bin",
        host: Some("host"),
        start_ticks: 0,
        spool: (0, 0),
        pid: 7,
        instance: None,
    };
    let service = |sources: Sources<'_>| Identity::resolve(&sources).service;
    assert_eq!(service(all), "flag");
    let no_flag = Sources {
        service: Some("  "),
        ..all
    };
    assert_eq!(service(no_flag), "env");
    let no_env = Sources {
        env_service: None,
        ..no_flag
    };
    assert_eq!(service(no_env), "unit");
    let no_unit = Sources {
        cgroup: "",
        ..no_env
    };
    assert_eq!(service(no_unit), "exe");
    let replaced = Sources {
        exe: "/usr/bin/app (deleted)",
        ..no_unit
    };
    assert_eq!(service(replaced), "app");
    assert_eq!(service(Sources::default()), UNKNOWN_SERVICE);
}

#[test]
fn an_instance_is_a_machine_unless_named() {
    let sources = Sources {
        host: Some("node-1"),
        ..Sources::default()
    };
    assert_eq!(Identity::resolve(&sources).instance, "node-1");
    let named = Identity::resolve(&Sources {
        instance: Some("blue"),
        ..sources
    });
    assert_eq!(named.instance, "blue");
    assert_eq!(
        Identity::resolve(&Sources::default()).instance,
        UNKNOWN_HOST
    );
}

#[test]
fn boot_ids_have_dial9s_form() {
    for (run, pid) in [(0_u64, 1), (u64::MAX, 481)] {
        let id = boot_id(run, pid);
        let (letters, number) = id.split_once('-').unwrap();
        assert!(letters.len() == 4 && letters.bytes().all(|byte| byte.is_ascii_lowercase()));
        assert_eq!(number, pid.to_string());
        assert_eq!(boot_id(run, pid), id);
    }
}

#[test]
fn each_run_and_each_spool_has_a_boot_of_its_own() {
    let sources = Sources {
        start_ticks: 77,
        spool: (1, 2),
        ..Sources::default()
    };
    let other_run = Sources {
        start_ticks: 78,
        ..sources
    };
    let other_spool = Sources {
        spool: (1, 3),
        ..sources
    };
    let boot = |sources: &Sources<'_>| Identity::resolve(sources).boot_id;
    assert_eq!(boot(&sources), boot(&sources));
    assert_ne!(boot(&sources), boot(&other_run));
    assert_ne!(boot(&sources), boot(&other_spool));
}

#[test]
fn units_and_containers_are_named_by_their_cgroup() {
    for (cgroup, name) in [
        ("0::/system.slice/checkout.service\n", Some("checkout")),
        (
            "0::/system.slice/checkout.service/workers\n",
            Some("checkout"),
        ),
        (
            "0::/system.slice/system-worker.slice/worker@blue.service",
            Some("worker@blue"),
        ),
        (r"0::/system.slice/my\x2dapp.service", Some("my-app")),
        (r"0::/system.slice/odd\xzz.service", Some(r"odd\xzz")),
        ("0::/user.slice/user-0.slice/session-3.scope", None),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x-1.scope",
            None,
        ),
        ("0::/lxc.payload.web/system.slice/app.service", Some("app")),
        ("0::/lxc.payload.web", Some("web")),
        ("1:name=systemd:/lxc/web", Some("web")),
        (r"0::/machine.slice/machine-deb\x2d1.scope", Some("deb-1")),
        ("0::/", None),
        ("", None),
        ("garbage\n0:", None),
        (
            "12:cpu,cpuacct:/x\n1:name=systemd:/system.slice/old.service\n0::/",
            Some("old"),
        ),
    ] {
        assert_eq!(unit_name(cgroup).as_deref(), name, "{cgroup}");
    }
}

#[test]
fn an_id_is_no_name() {
    for path in [
        format!("0::/system.slice/docker-{ID}.scope"),
        format!("0::/docker/{ID}"),
        format!("0::/machine.slice/libpod-{ID}.scope"),
        format!("0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        format!("0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope/init"),
    ] {
        assert_eq!(unit_name(&path), None, "{path}");
    }
}

#[test]
fn dial9s_environment_names_a_bucket() {
    let s3 = |prefix: &str| Destination::S3 {
        bucket: "b".into(),
        prefix: prefix.into(),
    };
    assert_eq!(destination_of_env(None, Some("p")), None);
    assert_eq!(destination_of_env(Some(" "), None), None);
    assert_eq!(
        destination_of_env(Some(" b "), None),
        Some(s3("dial9-traces"))
    );
    assert_eq!(
        destination_of_env(Some("b"), Some(" /prod/traces/ ")),
        Some(s3("prod/traces"))
    );
}

#[test]
fn a_predecessors_segment_keeps_its_identity() {
    let present = Identity {
        service: "now".into(),
        instance: "here".into(),
        boot_id: "bbbb-2".into(),
    };
    let entries = |pairs: &[(&str, &str)]| {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        pairs.iter().map(owned).collect::<Vec<_>>()
    };
    assert_eq!(Identity::of_segment(&[], &present), present);
    let told = entries(&[
        ("service", "then"),
        ("host", "there"),
        ("boot_id", "aaaa-1"),
    ]);
    let then = Identity {
        service: "then".into(),
        instance: "there".into(),
        boot_id: "aaaa-1".into(),
    };
    assert_eq!(Identity::of_segment(&told, &present), then);
    let named = entries(&[("host", "there"), ("instance", "blue")]);
    assert_eq!(Identity::of_segment(&named, &present).instance, "blue");
}
