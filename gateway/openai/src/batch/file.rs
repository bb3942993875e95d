//! Files: the form of an upload, read as it arrives, and objects.

use super::request::expiry;
use bytes::Bytes;
use omni_codec::form::{FormEvent, FormReader};
use omni_request_error::InvalidRequest;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// Longest value of a field, in bytes.
const LONGEST_VALUE: usize = 1024;
/// Longest name of a file, in bytes.
const LONGEST_NAME: usize = 512;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileObject {
    /// Identifier.
    pub id: String,
    /// `file`.
    pub object: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of its creation, in seconds since 1970.
    pub created_at: u64,
    /// Time from which it does not exist any more.
    pub expires_at: u64,
    /// Name, as the client has it.
    pub filename: String,
    /// `batch`, or `batch_output` for the results of one.
    pub purpose: &'static str,
    /// `processed`.
    pub status: &'static str,
}

/// List of files, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileList {
    /// `list`.
    pub object: &'static str,
    /// Files.
    pub data: Vec<FileObject>,
    /// Identifier of the first.
    pub first_id: Option<String>,
    /// Identifier of the last, for `after`.
    pub last_id: Option<String>,
    /// There are further ones.
    pub has_more: bool,
}

/// A file that was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileDeleted {
    /// Identifier.
    pub id: String,
    /// `file`.
    pub object: &'static str,
    /// True.
    pub deleted: bool,
}

/// Fields of an upload, beside the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
pub struct UploadForm {
    /// `batch`.
    pub purpose: String,
    /// `created_at`.
    #[schemars(rename = "expires_after[anchor]")]
    pub anchor: Option<String>,
    /// Seconds from the creation until the file expires.
    #[schemars(rename = "expires_after[seconds]")]
    pub seconds: Option<u64>,
}

/// Reader of an upload that arrives in pieces.
#[derive(Debug)]
pub struct UploadReader {
    form: FormReader,
    fields: UploadForm,
    part: Part,
    has_file: bool,
}

#[derive(Debug)]
enum Part {
    File,
    Field { name: String, value: Vec<u8> },
}

/// Next item of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadEvent {
    /// The file begins, which has this name.
    Begin(String),
    /// Bytes of the file.
    Content(Bytes),
}

impl UploadReader {
    /// A reader of a body with this `content-type`.
    ///
    /// # Errors
    /// The body is no form.
    pub fn new(media_type: &str) -> Result<Self, InvalidRequest> {
        let part = Part::Field { name: String::new(), value: Vec::new() };
        Ok(Self { form: FormReader::new(media_type)?, fields: UploadForm::default(), part, has_file: false })
    }

    /// Adds a piece of the body. All events are to be taken before the next one.
    pub fn push(&mut self, piece: &[u8]) {
        self.form.push(piece);
    }

    /// Takes the next event; `None`: another piece is needed.
    ///
    /// # Errors
    /// The form is none, has unknown fields or several files, or its purpose is not `batch`.
    pub fn next_event(&mut self) -> Result<Option<UploadEvent>, InvalidRequest> {
        while let Some(event) = self.form.next_event()? {
            match event {
                FormEvent::Part { field, file_name } if field == "file" => {
                    if !self.fields.purpose.is_empty() {
                        self.check_purpose()?; // some clients send it behind the file
                    }
                    if std::mem::replace(&mut self.has_file, true) {
                        return Err(InvalidRequest::new("file", "`file` appears twice"));
                    }
                    let name = file_name.unwrap_or_else(|| "file".to_owned());
                    if name.len() > LONGEST_NAME {
                        let message = format!("the name of `file` has more than {LONGEST_NAME} bytes");
                        return Err(InvalidRequest::new("file", message));
                    }
                    self.part = Part::File;
                    return Ok(Some(UploadEvent::Begin(name)));
                }
                FormEvent::Part { field, .. } => self.part = Part::Field { name: field, value: Vec::new() },
                FormEvent::Content(bytes) => match &mut self.part {
                    Part::File => return Ok(Some(UploadEvent::Content(bytes))),
                    Part::Field { value, .. } if value.len() + bytes.len() <= LONGEST_VALUE => value.extend(bytes),
                    Part::Field { name, .. } => {
                        let message = format!("`{name}` has more than {LONGEST_VALUE} bytes");
                        return Err(InvalidRequest::new(name.clone(), message));
                    }
                },
                FormEvent::PartEnd => self.end_part()?,
            }
        }
        Ok(None)
    }

    /// Ends the form. Returns the time after which the file expires, if the client asks for one.
    ///
    /// # Errors
    /// The form was cut off, or has no file or no purpose `batch`; the time is out of bounds.
    pub fn finish(&self) -> Result<Option<Duration>, InvalidRequest> {
        self.form.finish()?;
        if !self.has_file {
            return Err(InvalidRequest::missing("file"));
        }
        self.check_purpose()?;
        match (&self.fields.anchor, self.fields.seconds) {
            (None, None) => Ok(None),
            (Some(anchor), Some(seconds)) => expiry("expires_after", anchor, seconds).map(Some),
            (None, Some(_)) => Err(InvalidRequest::missing("expires_after[anchor]")),
            (Some(_), None) => Err(InvalidRequest::missing("expires_after[seconds]")),
        }
    }

    fn check_purpose(&self) -> Result<(), InvalidRequest> {
        match self.fields.purpose.as_str() {
            "batch" => Ok(()),
            "" => Err(InvalidRequest::missing("purpose")),
            _ => Err(InvalidRequest::new(
                "purpose",
                "`purpose` has to be `batch`: this node keeps files for batches only",
            )),
        }
    }

    fn end_part(&mut self) -> Result<(), InvalidRequest> {
        let Part::Field { name, value } = &self.part else { return Ok(()) };
        let text = str::from_utf8(value).map(str::to_owned);
        let text = text.map_err(|_| InvalidRequest::new(name.clone(), format!("`{name}` has to be UTF-8 text")))?;
        match name.as_str() {
            "purpose" => self.fields.purpose = text,
            "expires_after[anchor]" => self.fields.anchor = Some(text),
            "expires_after[seconds]" => {
                let seconds = text.parse().map_err(|_| {
                    InvalidRequest::new("expires_after[seconds]", "`expires_after[seconds]` has to be a whole number")
                })?;
                self.fields.seconds = Some(seconds);
            }
            _ => {
                let name: String = name.chars().take(64).collect();
                let message = format!("unknown field `{name}`: there are purpose, file and expires_after");
                return Err(InvalidRequest::new(name, message).with_code(omni_request_error::InvalidCode::Unknown));
            }
        }
        Ok(())
    }
}

impl FileDeleted {
    /// A file of this identifier.
    #[must_use]
    pub fn new(id: String) -> Self {
        Self { id, object: "file", deleted: true }
    }
}

impl FileList {
    /// A list of these files.
    #[must_use]
    pub fn new(data: Vec<FileObject>, has_more: bool) -> Self {
        let id = |file: Option<&FileObject>| file.map(|file| file.id.clone());
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        Self { object: "list", data, first_id, last_id, has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=b";

    fn read(parts: &[(&str, &str)]) -> Result<(Option<String>, String, Option<Duration>), InvalidRequest> {
        let mut reader = UploadReader::new(TYPE)?;
        let (mut name, mut content) = (None, Vec::new());
        let of = |(head, content): &(&str, &str)| {
            format!("--b\r\nContent-Disposition: form-data; name={head}\r\n\r\n{content}\r\n")
        };
        let body: String = parts.iter().map(of).chain(["--b--\r\n".to_owned()]).collect();
        for piece in body.as_bytes().chunks(7) {
            reader.push(piece);
            while let Some(event) = reader.next_event()? {
                match event {
                    UploadEvent::Begin(given) => name = Some(given),
                    UploadEvent::Content(bytes) => content.extend_from_slice(&bytes),
                }
            }
        }
        Ok((name, String::from_utf8(content).unwrap(), reader.finish()?))
    }

    #[test]
    fn an_upload_is_read_in_pieces() {
        let file = ("\"file\"; filename=\"in.jsonl\"", "{\"a\":1}\n");
        let plain = read(&[("purpose", "batch"), file]).unwrap();
        assert_eq!(plain, (Some("in.jsonl".into()), file.1.into(), None));
        let expiring = [("purpose", "batch"), ("\"expires_after[anchor]\"", "created_at"), file];
        let seconds = ("\"expires_after[seconds]\"", "3600");
        assert_eq!(read(&[file, ("purpose", "batch")]).unwrap(), plain, "as the client of npm sends it");
        let all = read(&[&expiring[..], &[seconds]].concat()).unwrap();
        assert_eq!(all.2, Some(Duration::from_secs(3600)));
        for (parts, parameter) in [
            (&[file][..], "purpose"),
            (&[file, ("purpose", "fine-tune")], "purpose"),
            (&[("purpose", "fine-tune"), file], "purpose"),
            (&[("purpose", "batch")], "file"),
            (&[("purpose", "batch"), file, file], "file"),
            (&[("purpose", "batch"), ("other", "1"), file], "other"),
            (&expiring, "expires_after[seconds]"),
            (&[("purpose", "batch"), file, seconds], "expires_after[anchor]"),
            (&[("purpose", "batch"), ("\"expires_after[seconds]\"", "soon"), file], "expires_after[seconds]"),
            (&[("purpose", &"x".repeat(2000)), file], "purpose"),
        ] {
            assert_eq!(read(parts).unwrap_err().parameter.as_deref(), Some(parameter), "{parts:?}");
        }
    }
}
