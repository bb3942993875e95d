//! Advice about managed memory, and questions about it.

use crate::abi::{In, Out, api, out_at};
use crate::error::{Answer, Error};
use crate::machine;
use crate::memory::access::Part;
use crate::memory::managed::{CPU, Managed, NOWHERE};
use crate::memory::prefetch::Location;
use crate::objects::{Objects, objects};
use crate::ranges::Ranges;
use std::collections::BTreeMap;

api! {
    fn cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32) = advise_1;
    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: u32, place: Location) = advise_2;
    fn cuMemRangeGetAttribute(data: u64, size: usize, attribute: u32, address: u64, bytes: usize) = attribute;
    fn cuMemRangeGetAttributes(
        data: In<u64>, sizes: In<usize>, attributes: In<u32>, count: usize, address: u64, bytes: usize,
    ) = attributes;
}

/// `CUmem_advise`.
const SET_READ_MOSTLY: u32 = 1;
const UNSET_READ_MOSTLY: u32 = 2;
const SET_PREFERRED: u32 = 3;
const UNSET_PREFERRED: u32 = 4;
const SET_ACCESSED_BY: u32 = 5;
const UNSET_ACCESSED_BY: u32 = 6;

fn advise_1(address: u64, bytes: usize, advice: u32, device: i32) -> Answer {
    let mut objects = objects()?;
    // The device means nothing to the others.
    let has_place = matches!(advice, SET_PREFERRED | SET_ACCESSED_BY | UNSET_ACCESSED_BY);
    if has_place && device != CPU {
        concurrent(device)?;
    }
    objects.advise(address, bytes, advice, device)
}

fn advise_2(address: u64, bytes: usize, advice: u32, place: Location) -> Answer {
    let mut objects = objects()?;
    let has_place = matches!(advice, SET_PREFERRED | SET_ACCESSED_BY | UNSET_ACCESSED_BY);
    let place = if has_place { place.place()? } else { CPU };
    if place != CPU {
        concurrent(place)?;
    }
    objects.advise(address, bytes, advice, place)
}

fn concurrent(device: i32) -> Answer {
    let (_, device) = machine::device(device)?;
    if device.settings.concurrent_managed { Ok(()) } else { Err(Error::INVALID_DEVICE) }
}

impl Objects {
    fn advise(&mut self, address: u64, bytes: usize, advice: u32, place: i32) -> Answer {
        for Part { base, range } in self.managed_parts(address, bytes as u64)? {
            let Some(managed) = self.allocation(base)?.managed_mut() else { continue };
            match advice {
                SET_READ_MOSTLY => managed.read_mostly.add(&range),
                UNSET_READ_MOSTLY => {
                    managed.read_mostly = managed.read_mostly.without(&range);
                    // Only the device's copy is left.
                    let duplicated: Vec<Ranges> = managed.on_device.values().map(|on| on.ranges.and(&range)).collect();
                    for ranges in duplicated {
                        managed.written(&ranges);
                    }
                }
                SET_PREFERRED => Managed::assign(&mut managed.preferred, place, &range),
                UNSET_PREFERRED => Managed::assign(&mut managed.preferred, NOWHERE, &range),
                SET_ACCESSED_BY => drop(managed.accessed_by.insert(place)),
                UNSET_ACCESSED_BY => drop(managed.accessed_by.remove(&place)),
                _ => return Err(Error::INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// The place that all of a range has in a table.
    fn place(&self, parts: &[Part], table: impl Fn(&Managed) -> &BTreeMap<i32, Ranges>) -> i32 {
        let of = |part: &Part| {
            let managed = self.allocations.exact(part.base)?.managed()?;
            Managed::common(table(managed), &part.range)
        };
        let mut places = parts.iter().map(of);
        let first = places.next().flatten();
        first.filter(|first| places.all(|place| place == Some(*first))).unwrap_or(NOWHERE)
    }

    /// Attribute of a range: a word, or the devices that access it.
    fn range_attribute(&self, parts: &[Part], attribute: u32, words: usize) -> Result<Vec<i32>, Error> {
        let managed = |part: &Part| self.allocations.exact(part.base).and_then(|allocation| allocation.managed());
        let preferred = || self.place(parts, |managed| &managed.preferred);
        let prefetched = || self.place(parts, |managed| &managed.last_prefetch);
        let kind = |place: i32| match place {
            CPU => Location::HOST,
            NOWHERE => 0,
            _ => Location::DEVICE,
        };
        let answer = match attribute {
            1 => {
                let mostly = |part: &Part| {
                    managed(part).is_some_and(|managed| part.range.without(&managed.read_mostly).is_empty())
                };
                vec![i32::from(parts.iter().all(mostly))]
            }
            2 => vec![preferred()],
            3 => {
                let mut all = parts.first().and_then(managed).map(|one| one.accessed_by.clone()).unwrap_or_default();
                all.retain(|device| parts.iter().filter_map(managed).all(|one| one.accessed_by.contains(device)));
                return Ok(all.into_iter().chain(std::iter::repeat(NOWHERE)).take(words).collect());
            }
            4 => vec![prefetched()],
            5 => vec![kind(preferred())],
            6 => vec![preferred().max(0)],
            7 => vec![kind(prefetched())],
            8 => vec![prefetched().max(0)],
            _ => return Err(Error::INVALID_VALUE),
        };
        if words == 1 { Ok(answer) } else { Err(Error::INVALID_VALUE) }
    }
}

fn attribute(data: u64, size: usize, attribute: u32, address: u64, bytes: usize) -> Answer {
    let objects = objects()?;
    let data: Out<i32> = out_at(data);
    data.check()?;
    if size == 0 || !size.is_multiple_of(4) {
        return Err(Error::INVALID_VALUE);
    }
    let parts = objects.managed_parts(address, bytes as u64)?;
    data.put_all(&objects.range_attribute(&parts, attribute, size / 4)?)
}

fn attributes(
    data: In<u64>,
    sizes: In<usize>,
    attributes: In<u32>,
    count: usize,
    address: u64,
    bytes: usize,
) -> Answer {
    let (data, sizes, attributes) = (data.get_all(count)?, sizes.get_all(count)?, attributes.get_all(count)?);
    if count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    for ((data, size), wanted) in data.into_iter().zip(sizes).zip(attributes) {
        attribute(data, size, wanted, address, bytes)?;
    }
    Ok(())
}
