//! Devices: what there is and what it can do.

use crate::abi::{In, Out, api};
use crate::error::{Answer, Error};
use crate::machine::{self, Device};
use std::ffi::c_char;

api! {
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) = get;
    fn cuDeviceGetCount(count: Out<i32>) = count;
    fn cuDeviceGetName(name: Out<u8>, length: i32, device: i32) = name;
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) = uuid;
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) = uuid;
    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) = total_low;
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) = total;
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) = attribute;
    fn cuDeviceGetProperties(properties: Out<[i32; 14]>, device: i32) = properties;
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) = capability;
    fn cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) = pci_bus_id;
    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<c_char>) = by_pci_bus_id;
    fn cuDeviceGetExecAffinitySupport(value: Out<i32>, kind: u32, device: i32) = no_affinity;
    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) = linear_width;
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) = can_access_peer;
    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, source: i32, destination: i32) = peer_attribute;
}

/// Attributes that are the same on every card, as a card of our days has them; what is not here is 0. The numbers are
/// those of `CUdevice_attribute`.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024), // threads in a block
    (2, 1024), // its dimensions
    (3, 1024),
    (4, 64),
    (5, i32::MAX), // dimensions of a grid
    (6, 65535),
    (7, 65535),
    (8, 49152),      // shared memory in a block
    (9, 65536),      // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch
    (12, 65536),     // registers in a block
    (13, 1_500_000), // clock, kHz
    (14, 512),       // alignment of textures
    (15, 1),         // copies beside kernels
    (16, 16),        // multiprocessors
    (19, 1),         // maps host memory
    (21, 131_072),   // textures
    (22, 131_072),
    (23, 65536),
    (24, 16384),
    (25, 16384),
    (26, 16384),
    (27, 32768),
    (28, 32768),
    (29, 2048),
    (30, 512),       // alignment of surfaces
    (31, 1),         // concurrent kernels
    (36, 2_000_000), // memory clock, kHz
    (37, 384),       // memory bus, bits
    (38, 4 << 20),   // level 2 cache
    (39, 2048),      // threads on a multiprocessor
    (40, 2),         // copy engines
    (41, 1),         // unified addressing
    (42, 32768),
    (43, 2048),
    (51, 32), // alignment of texture pitch
    (69, 268_435_456),
    (78, 1), // priorities
    (79, 1), // level 1 caches
    (80, 1),
    (81, 102_400), // shared memory on a multiprocessor
    (82, 65536),   // registers on one
    (83, 1),       // managed memory
    (90, 1),       // preemption
    (91, 1),       // registered host memory at its own address
    (92, 1),       // stream memory operations
    (93, 1),
    (95, 1),       // cooperative launch
    (97, 101_376), // shared memory in a block that asks for it
    (99, 1),       // host registration
    (102, 1),      // virtual memory management
    (103, 1),      // handles that are descriptors
    (106, 16),     // blocks on a multiprocessor
    (111, 1024),   // shared memory that the driver keeps
    (113, 1),      // read-only host registration
    (115, 1),      // pools
    (119, 1),      // whose handles are descriptors
    (120, 1),      // clusters
    (122, 1),
    (126, 1), // memory domains
    (130, 0), // no node of memory of its own
    (131, -1),
    (134, 0), // node of the host
];

fn get(device: Out<i32>, ordinal: i32) -> Answer {
    machine::device(ordinal)?;
    device.put(ordinal)
}

fn count(count: Out<i32>) -> Answer {
    count.put(i32::try_from(machine::all()?.len()).unwrap_or(0))
}

/// Writes as much of a text as fits, with a NUL.
fn put_text(to: Out<u8>, length: i32, text: &str) -> Answer {
    let room = usize::try_from(length).ok().filter(|room| *room > 0).ok_or(Error::INVALID_VALUE)?;
    let bytes: Vec<u8> = text.bytes().take(room - 1).chain([0]).collect();
    to.put_all(&bytes)
}

fn name(name: Out<u8>, length: i32, device: i32) -> Answer {
    put_text(name, length, &machine::device(device)?.1.settings.name)
}

fn uuid(uuid: Out<[u8; 16]>, device: i32) -> Answer {
    uuid.put(machine::device(device)?.1.settings.uuid)
}

fn total(bytes: Out<usize>, device: i32) -> Answer {
    bytes.put(usize::try_from(machine::device(device)?.1.settings.memory).unwrap_or(usize::MAX))
}

fn total_low(bytes: Out<u32>, device: i32) -> Answer {
    bytes.put(u32::try_from(machine::device(device)?.1.settings.memory).unwrap_or(u32::MAX))
}

fn attribute(value: Out<i32>, attribute: u32, device: i32) -> Answer {
    let (_, device) = machine::device(device)?;
    if attribute == 0 || attribute > LAST_ATTRIBUTE {
        return Err(Error::INVALID_VALUE);
    }
    value.put(attribute_of(device, attribute))
}

/// The last number of CUDA 13.
const LAST_ATTRIBUTE: u32 = 161;

fn attribute_of(device: &Device, attribute: u32) -> i32 {
    let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let concurrent = i32::from(device.settings.concurrent_managed);
    match attribute {
        33 => i32::from(device.minor) + 1,
        75 => small(device.settings.capability.0),
        76 => small(device.settings.capability.1),
        89 => concurrent,
        // Managed pools came with CUDA 13; the host's ones are not simulated.
        _ => ATTRIBUTES.iter().find(|(known, _)| *known == attribute).map_or(0, |(_, value)| *value),
    }
}

fn properties(properties: Out<[i32; 14]>, device: i32) -> Answer {
    let (_, device) = machine::device(device)?;
    properties.put([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].map(|attribute| attribute_of(device, attribute)))
}

fn capability(major: Out<i32>, minor: Out<i32>, device: i32) -> Answer {
    let (_, device) = machine::device(device)?;
    major.put(attribute_of(device, 75))?;
    minor.put(attribute_of(device, 76))
}

/// "0000:01:00.0".
fn pci(device: &Device) -> String {
    format!("0000:{:02x}:00.0", device.minor + 1)
}

fn pci_bus_id(text: Out<u8>, length: i32, device: i32) -> Answer {
    put_text(text, length, &pci(machine::device(device)?.1))
}

fn by_pci_bus_id(device: Out<i32>, text: In<c_char>) -> Answer {
    device.check()?;
    let text = text.text()?.to_lowercase();
    let known = |device: &Device| pci(device) == text || pci(device).strip_prefix("0000:") == Some(&text);
    let found = machine::all()?.iter().position(known).ok_or(Error::INVALID_DEVICE)?;
    device.put(i32::try_from(found).unwrap_or(0))
}

fn no_affinity(value: Out<i32>, _kind: u32, device: i32) -> Answer {
    machine::device(device)?;
    value.put(0)
}

fn linear_width(width: Out<usize>, _format: u32, _channels: u32, device: i32) -> Answer {
    machine::device(device)?;
    width.put(1 << 27)
}

/// True for any two different cards: memory is one address space here.
fn can_access_peer(can: Out<i32>, device: i32, peer: i32) -> Answer {
    let (one, other) = (machine::device(device)?.0, machine::device(peer)?.0);
    can.put(i32::from(one != other))
}

fn peer_attribute(value: Out<i32>, attribute: u32, source: i32, destination: i32) -> Answer {
    let (one, other) = (machine::device(source)?.0, machine::device(destination)?.0);
    match attribute {
        _ if one == other => Err(Error::INVALID_DEVICE),
        // Performance rank 0, and access of every kind but atomics.
        1 | 3 | 5 => value.put(0),
        2 | 4 => value.put(1),
        _ => Err(Error::INVALID_VALUE),
    }
}
