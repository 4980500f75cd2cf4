//! Commands of SMTP submission (RFC 5321, section 4.1, RFC 4954, RFC 1870 and RFC 6152): read from
//! one line, and checked for their form alone.

/// Command of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// `EHLO`.
    Ehlo,
    /// `HELO`.
    Helo,
    /// `STARTTLS`.
    StartTls,
    /// `AUTH`.
    Auth {
        /// SASL mechanism of the authentication.
        mechanism: Mechanism,
        /// The initial response, in base64, if the client gave one.
        initial: Option<&'a str>,
    },
    /// `MAIL`.
    Mail {
        /// The envelope's sender; `None` is the empty one, `<>`.
        sender: Option<&'a str>,
        /// The size that the client announces, in bytes.
        size: Option<u64>,
    },
    /// `RCPT`, with the recipient's address.
    Rcpt(&'a str),
    /// `DATA`.
    Data,
    /// `RSET`.
    Reset,
    /// `NOOP`.
    Noop,
    /// `VRFY`.
    Verify,
    /// `QUIT`.
    Quit,
}

/// SASL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// RFC 4616.
    Plain,
    /// The older form, which asks for user name and password one after the other.
    Login,
}

/// Reason why a line is no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandError {
    /// No command has this name.
    Unknown,
    /// The command is not implemented here.
    NotImplemented,
    /// The arguments do not have the command's form.
    Arguments,
    /// A parameter of `MAIL` or `RCPT` is not known.
    Parameter,
    /// A mechanism that is not offered.
    Mechanism,
}

impl<'a> Command<'a> {
    /// Reads a command from a line without its CRLF.
    pub fn parse(line: &'a [u8]) -> Result<Self, CommandError> {
        let line = match std::str::from_utf8(line) {
            Ok(line) => line,
            Err(error) => return Self::parse_name(&line[..error.valid_up_to()]),
        };
        let (name, arguments) = line.split_once(' ').unwrap_or((line, ""));
        // White space at the end is tolerated (RFC 5321, section 4.1.1).
        let arguments = arguments.trim_matches([' ', '\t']);
        let alone = |command| {
            if arguments.is_empty() { Ok(command) } else { Err(CommandError::Arguments) }
        };
        let greeting = |command| {
            if arguments.is_empty() { Err(CommandError::Arguments) } else { Ok(command) }
        };
        match name.trim_end_matches([' ', '\t']).to_ascii_uppercase().as_str() {
            "EHLO" => greeting(Self::Ehlo),
            "HELO" => greeting(Self::Helo),
            "STARTTLS" => alone(Self::StartTls),
            "AUTH" => auth(arguments),
            "MAIL" => mail(arguments),
            "RCPT" => rcpt(arguments),
            "DATA" => alone(Self::Data),
            "RSET" => alone(Self::Reset),
            // Its argument means nothing (RFC 5321, section 4.1.1.9).
            "NOOP" => Ok(Self::Noop),
            "VRFY" => Ok(Self::Verify),
            "QUIT" => alone(Self::Quit),
            "EXPN" | "HELP" | "TURN" | "ETRN" | "BDAT" | "BURL" => {
                Err(CommandError::NotImplemented)
            }
            _ => Err(CommandError::Unknown),
        }
    }
}

impl Command<'_> {
    /// Reads a command with an argument that is no text, if that means nothing: some clients greet
    /// with the name of their machine in its own charset.
    fn parse_name(text: &[u8]) -> Result<Self, CommandError> {
        let end = text.iter().position(|byte| *byte == b' ').ok_or(CommandError::Arguments)?;
        match text[..end].to_ascii_uppercase().as_slice() {
            b"EHLO" => Ok(Self::Ehlo),
            b"HELO" => Ok(Self::Helo),
            b"NOOP" => Ok(Self::Noop),
            b"VRFY" => Ok(Self::Verify),
            _ => Err(CommandError::Arguments),
        }
    }
}

fn auth(arguments: &str) -> Result<Command<'_>, CommandError> {
    let (name, initial) = match arguments.split_once(' ') {
        Some((name, initial)) => (name, Some(initial.trim_start())),
        None => (arguments, None),
    };
    let mechanism = match name.to_ascii_uppercase().as_str() {
        "PLAIN" => Mechanism::Plain,
        "LOGIN" => Mechanism::Login,
        "" => return Err(CommandError::Arguments),
        _ => return Err(CommandError::Mechanism),
    };
    // A single = is an initial response of no bytes (RFC 4954, section 4).
    let initial = initial.map(|initial| if initial == "=" { "" } else { initial });
    Ok(Command::Auth { mechanism, initial })
}

fn mail(arguments: &str) -> Result<Command<'_>, CommandError> {
    let (sender, parameters) = path(arguments, "FROM:")?;
    let mut size = None;
    for parameter in parameters.split_ascii_whitespace() {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name.to_ascii_uppercase().as_str(), value.to_ascii_uppercase().as_str()) {
            ("SIZE", digits) => {
                let is_number =
                    (1..=20).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
                if !is_number {
                    return Err(CommandError::Arguments);
                }
                // What does not fit is larger than any message.
                size = Some(digits.parse().unwrap_or(u64::MAX));
            }
            ("BODY", "7BIT" | "8BITMIME") => {}
            ("BODY", _) => return Err(CommandError::Arguments),
            // Who gave the message to this client (RFC 4954, section 5): of no account.
            ("AUTH", value) if !value.is_empty() => {}
            _ => return Err(CommandError::Parameter),
        }
    }
    Ok(Command::Mail { sender: (!sender.is_empty()).then_some(sender), size })
}

fn rcpt(arguments: &str) -> Result<Command<'_>, CommandError> {
    let (recipient, parameters) = path(arguments, "TO:")?;
    if !parameters.is_empty() {
        return Err(CommandError::Parameter);
    }
    Ok(Command::Rcpt(recipient))
}

/// The address between the angle brackets after a word, and what follows them.
fn path<'a>(arguments: &'a str, word: &str) -> Result<(&'a str, &'a str), CommandError> {
    let rest = arguments
        .get(..word.len())
        .filter(|start| start.eq_ignore_ascii_case(word))
        .and_then(|_| arguments[word.len()..].trim_start_matches(' ').strip_prefix('<'))
        .ok_or(CommandError::Arguments)?;
    let (mut is_quoted, mut is_escaped) = (false, false);
    let end = rest.bytes().position(|byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => return byte == b'>' && !is_quoted,
        }
        false
    });
    let (address, after) = rest.split_at(end.ok_or(CommandError::Arguments)?);
    let parameters = &after[1..];
    if parameters.is_empty() || parameters.starts_with(' ') {
        Ok((address, parameters.trim()))
    } else {
        Err(CommandError::Arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command<'_>, CommandError> {
        Command::parse(line.as_bytes())
    }

    #[test]
    fn commands_are_read_in_any_case() {
        assert_eq!(parse("EHLO client.example.org"), Ok(Command::Ehlo));
        assert_eq!(parse("helo x"), Ok(Command::Helo));
        assert_eq!(parse("StartTLS"), Ok(Command::StartTls));
        assert_eq!(parse("DATA  "), Ok(Command::Data));
        assert_eq!(parse("noop anything"), Ok(Command::Noop));
        assert_eq!(parse("rset"), Ok(Command::Reset));
        assert_eq!(parse("quit"), Ok(Command::Quit));
        assert_eq!(parse("vrfy ann"), Ok(Command::Verify));
        let auth = |mechanism, initial| Ok(Command::Auth { mechanism, initial });
        assert_eq!(parse("AUTH plain"), auth(Mechanism::Plain, None));
        assert_eq!(parse("AUTH PLAIN ="), auth(Mechanism::Plain, Some("")));
        assert_eq!(parse("auth LOGIN QQ=="), auth(Mechanism::Login, Some("QQ==")));
    }

    #[test]
    fn a_path_has_angle_brackets_and_known_parameters() {
        let mail = |sender, size| Ok(Command::Mail { sender, size });
        assert_eq!(parse("MAIL FROM:<>"), mail(None, None));
        assert_eq!(
            parse("mail from: <ann@example.com> SIZE=100 BODY=8bitmime AUTH=<>"),
            mail(Some("ann@example.com"), Some(100))
        );
        let huge = parse("MAIL FROM:<a@x.org> SIZE=99999999999999999999");
        assert_eq!(huge, mail(Some("a@x.org"), Some(u64::MAX)));
        assert_eq!(
            parse(r#"RCPT TO:<"a>\"b"@x.org>"#),
            Ok(Command::Rcpt(r#""a>\"b"@x.org"#)),
            "a quoted bracket is part of the address"
        );
        let backslash = parse(r"RCPT TO:<a\>");
        assert_eq!(backslash, Ok(Command::Rcpt("a\\")), "outside quotes it escapes nothing");
    }

    #[test]
    fn other_lines_are_no_commands() {
        for (lines, error) in [
            (&["", "EHLOX a", "GET / HTTP/1.1", "MAILFROM:<a@x.org>"][..], CommandError::Unknown),
            (&["EXPN a", "BDAT 10", "HELP"], CommandError::NotImplemented),
            (
                &[
                    "EHLO",
                    "DATA now",
                    "QUIT now",
                    "STARTTLS now",
                    "AUTH",
                    "MAIL",
                    "MAIL TO:<a@x.org>",
                    "MAIL FROM:a@x.org",
                    "MAIL FROM:<a@x.org",
                    "MAIL FROM:<a@x.org>SIZE=1",
                    "MAIL FROM:<a@x.org> SIZE=",
                    "MAIL FROM:<a@x.org> SIZE=-1",
                    "MAIL FROM:<a@x.org> BODY=BINARYMIME",
                    "RCPT TO:",
                    "RCPT TO:<\"a>",
                ],
                CommandError::Arguments,
            ),
            (
                &[
                    "MAIL FROM:<a@x.org> SMTPUTF8",
                    "MAIL FROM:<a@x.org> AUTH=",
                    "MAIL FROM:<a@x.org> RET=HDRS",
                    "RCPT TO:<a@x.org> NOTIFY=NEVER",
                ],
                CommandError::Parameter,
            ),
            (&["AUTH CRAM-MD5", "AUTH XOAUTH2 abc"], CommandError::Mechanism),
        ] {
            for line in lines {
                assert_eq!(parse(line), Err(error), "{line}");
            }
        }
        assert_eq!(Command::parse(b"MAIL FROM:<\xff@x.org>"), Err(CommandError::Arguments));
    }

    #[test]
    fn an_argument_without_a_meaning_may_be_in_any_charset() {
        for (line, command) in [
            (&b"EHLO b\xfcro"[..], Command::Ehlo),
            (b"helo b\xfcro", Command::Helo),
            (b"NOOP \xff", Command::Noop),
            (b"VRFY J\xf6rg", Command::Verify),
        ] {
            assert_eq!(Command::parse(line), Ok(command), "{}", line.escape_ascii());
        }
        for line in [&b"EHLO\xff"[..], b"\xff", b"RSET \xff"] {
            let error = Command::parse(line);
            assert_eq!(error, Err(CommandError::Arguments), "{}", line.escape_ascii());
        }
    }
}
