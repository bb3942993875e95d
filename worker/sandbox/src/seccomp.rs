//! The system calls that a model may not make. A deny list: models import half of PyPI, so what is not dangerous
//! works; what reaches kernel parts with a history of holes, or undoes the sandbox, does not.
//!
//! Compiled before the clone by [`super::spawn`], applied last by [`super::child`]. Most of this needs capabilities that
//! a model has not: the filter is there for the kernel's own mistakes.

use super::step::{Step, StepError};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Refused with `EPERM` for any arguments.
const REFUSED: &[c_long] = &[
    // mounts and namespaces
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // other processes
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // parts of the kernel that were often broken
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_modify_ldt,
    // the machine
    libc::SYS_acct,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_vhangup,
];

/// Refused with `ENOSYS`: programs do without them then.
const ABSENT: &[c_long] = &[
    libc::SYS_clone3, // a filter cannot look at its flags
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Contexts of asynchronous I/O: `fs.aio-max-nr` is one number for the machine, and one model could take it all.
    libc::SYS_io_setup,
    // Watches see what every process of the host does with a file that lies in the sandbox as well: all of `/usr`.
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Families of sockets that a model may use; netlink is how the C library lists addresses: [`NETLINK_ROUTE`].
///
/// [`NETLINK_ROUTE`]: libc::NETLINK_ROUTE
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Requests that put input into a terminal.
const TERMINAL_INPUT: [libc::c_ulong; 2] = [libc::TIOCSTI, libc::TIOCLINUX];
/// Commands of `fcntl` that watch or hold files which other processes use: a watch of a directory shows what the host
/// does in it, and opening a leased file waits for its holder, in the launcher too.
const SHARED_FILES: [libc::c_int; 2] = [libc::F_NOTIFY, libc::F_SETLEASE];
/// Options of `SOL_SOCKET` that give a socket a program of filters: `net.core.bpf_jit_limit` is one number for the machine,
/// and once a model has taken it no process without privileges can apply a system call filter.
const SOCKET_PROGRAMS: [libc::c_int; 4] =
    [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];
/// Execution domains that programs ask for: none, and a query of the current one.
const PERSONALITIES: [u64; 2] = [0, 0xffff_ffff];

/// The whole policy, ready to be applied.
pub(super) struct Filter([BpfProgram; 2]);

impl Filter {
    /// Compiles the policy for this machine.
    pub(super) fn compile() -> Result<Self, StepError> {
        let step = || "compile the system call filter".to_owned();
        let mut refused: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
        refused.extend(conditional().step(step)?);
        let absent = ABSENT.iter().map(|call| (*call, Vec::new())).collect();
        Ok(Self([program(refused, libc::EPERM).step(step)?, program(absent, libc::ENOSYS).step(step)?]))
    }

    /// Applies the filter to this thread and all that come from this thread, for good.
    pub(super) fn apply(&self) -> Result<(), StepError> {
        self.0.iter().try_for_each(|program| apply_filter(program)).step(|| "apply the system call filter".into())
    }
}

/// Refuses Unix sockets to this thread and all that come from it, for good, even where [`Filter`] allows them; pairs of
/// them, which reach no other process, are harmless. Compiled by the child itself: few sandboxes have a need of it.
pub(super) fn forbid_unix_sockets() -> Result<(), StepError> {
    let step = || "forbid Unix sockets".to_owned();
    apply_filter(&no_unix_sockets().step(step)?).step(step)
}

fn no_unix_sockets() -> Result<BpfProgram, seccompiler::BackendError> {
    let unix = any([vec![compare(0, SeccompCmpOp::Eq, bits(libc::AF_UNIX))]])?;
    program(Rules::from([(libc::SYS_socket, unix)]), libc::EPERM)
}

fn conditional() -> Result<Rules, seccompiler::BackendError> {
    let device = |kind: libc::mode_t| vec![is_masked(1, libc::S_IFMT.into(), kind.into())];
    let device_at = |kind: libc::mode_t| vec![is_masked(2, libc::S_IFMT.into(), kind.into())];
    let flag = |flag: libc::c_int| vec![is_masked(0, bits(flag), bits(flag))];
    let all_but = |values: &[u64]| values.iter().map(|value| compare(0, SeccompCmpOp::Ne, *value)).collect::<Vec<_>>();
    Ok(BTreeMap::from([
        (libc::SYS_clone, any(NAMESPACES.map(flag))?),
        (libc::SYS_mknod, any([device(libc::S_IFCHR), device(libc::S_IFBLK)])?),
        (libc::SYS_mknodat, any([device_at(libc::S_IFCHR), device_at(libc::S_IFBLK)])?),
        (libc::SYS_ioctl, any(TERMINAL_INPUT.map(|request| vec![compare(1, SeccompCmpOp::Eq, request)]))?),
        (libc::SYS_socket, any([all_but(&FAMILIES.map(bits)), no_route_netlink()])?),
        (libc::SYS_fcntl, any(SHARED_FILES.map(|command| vec![compare(1, SeccompCmpOp::Eq, bits(command))]))?),
        // A pair is made by the same code of the family, which the kernel loads for it as well.
        (libc::SYS_socketpair, any([all_but(&FAMILIES.map(bits))])?),
        (libc::SYS_setsockopt, any(SOCKET_PROGRAMS.map(socket_option))?),
        (libc::SYS_personality, any([all_but(&PERSONALITIES)])?),
    ]))
}

/// Netlink beside its routes. The kernel sends its device events (`NETLINK_KOBJECT_UEVENT`) to every network namespace
/// that has no user namespace of its own, a model's too.
fn no_route_netlink() -> Vec<Result<SeccompCondition, seccompiler::BackendError>> {
    vec![compare(0, SeccompCmpOp::Eq, bits(libc::AF_NETLINK)), compare(2, SeccompCmpOp::Ne, bits(libc::NETLINK_ROUTE))]
}

fn socket_option(option: libc::c_int) -> Vec<Result<SeccompCondition, seccompiler::BackendError>> {
    vec![compare(1, SeccompCmpOp::Eq, bits(libc::SOL_SOCKET)), compare(2, SeccompCmpOp::Eq, bits(option))]
}

/// Rules of which one is enough, each of conditions that must all hold.
fn any<const N: usize>(
    rules: [Vec<Result<SeccompCondition, seccompiler::BackendError>>; N],
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    rules.into_iter().map(|conditions| SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)).collect()
}

/// The kernel itself looks at the low 32 bits of all arguments that are compared here.
fn compare(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn is_masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    compare(argument, SeccompCmpOp::MaskedEq(mask), value)
}

fn bits(flag: libc::c_int) -> u64 {
    flag.unsigned_abs().into()
}

fn program(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, seccompiler::BackendError> {
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, std::env::consts::ARCH.try_into()?)?;
    let mut program = no_x32().to_vec();
    program.extend(BpfProgram::try_from(filter)?);
    Ok(program)
}

/// The x32 calls have numbers of their own and would pass by a list of the usual numbers: all of them are refused.
fn no_x32() -> [sock_filter; 3] {
    const X32_BIT: u32 = 0x4000_0000;
    let number_at = 0; // offset of `nr` in `struct seccomp_data`
    let statement = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, number_at),
        statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::prctl;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;
    use std::thread;

    #[test]
    fn the_policy_compiles_and_fits_the_kernel() {
        let Filter(programs) = Filter::compile().unwrap();
        for program in programs.iter().chain([&no_unix_sockets().unwrap()]) {
            assert!(program.len() < usize::from(libc::BPF_MAXINSNS as u16), "{} instructions", program.len());
        }
    }

    #[test]
    fn where_unix_sockets_are_forbidden_pairs_of_them_and_others_are_not() {
        // A filter stays once applied: it is given to a thread that ends.
        let forbidden = thread::spawn(|| {
            prctl::set_no_new_privs().unwrap();
            forbid_unix_sockets().unwrap();
            assert_eq!(UnixDatagram::unbound().unwrap_err().raw_os_error(), Some(libc::EPERM));
            UnixDatagram::pair().unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap();
        });
        forbidden.join().unwrap();
    }
}
