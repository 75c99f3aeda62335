// SPDX-License-Identifier: GPL-2.0

//! Arguments, the terminal, and the times of samples.

#![forbid(unsafe_code)]

use std::{
    env,
    io::{
        self,
        IsTerminal,
        Write, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::ExitCode,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use ratatui::{
    backend::TestBackend,
    buffer::Buffer,
    crossterm::event::{
        self,
        Event,
        KeyCode,
        KeyEventKind,
        KeyModifiers, //
    },
    Terminal, //
};
use ro2ibtop::{
    device_counters::Counters,
    json,
    prometheus,
    source,
    svg,
    verdict::Level,
    view::App, //
};

const USAGE: &str = "\
usage: ro2ibtop [options]
  --once              show the screen once, as text
  --json              all values, as JSON
  --schema            the JSON Schema of --json
  --prometheus        counters, in the text format of Prometheus
  --svg               the screen once, as a picture
  --events            closed connections instead of peers and connections
  --snapshot FILE     a file of ro2ib-report instead of this node
  --interval SECONDS  between two samples (2)
  --width COLUMNS     of --once and --svg (160)
  --rows LINES        of --once and --svg, at most (50)
  --root DIRECTORY    read /sys in that directory
  --check             exit status 1 if something is slow or odd, 2 if messages do not get through
  --version, --help
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Live,
    Once,
    Json,
    Prometheus,
    Svg,
}

struct Options {
    mode: Mode,
    snapshot: Option<PathBuf>,
    root: PathBuf,
    interval: Duration,
    width: u16,
    rows: u16,
    events: bool,
    check: bool,
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        mode: Mode::Live,
        snapshot: None,
        root: PathBuf::from("/"),
        interval: Duration::from_secs(2),
        width: 160,
        rows: 50,
        events: false,
        check: false,
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--once" => options.mode = Mode::Once,
            "--json" => options.mode = Mode::Json,
            "--prometheus" => options.mode = Mode::Prometheus,
            "--svg" => options.mode = Mode::Svg,
            "--events" => options.events = true,
            "--check" => options.check = true,
            "--snapshot" => options.snapshot = Some(PathBuf::from(value()?)),
            "--root" => options.root = PathBuf::from(value()?),
            "--interval" => {
                let seconds: f64 = value()?.parse().map_err(|_| "not a number of seconds")?;
                if !(0.1..=3600.0).contains(&seconds) {
                    return Err("the interval is 0.1 to 3600 seconds".to_string());
                }
                options.interval = Duration::from_secs_f64(seconds);
            }
            "--width" => options.width = size(&value()?)?,
            "--rows" => options.rows = size(&value()?)?,
            "--schema" => {
                print!("{}", json::schema());
                return Ok(None);
            }
            "--version" => {
                println!("ro2ibtop {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--help" | "-h" => {
                print!("{USAGE}");
                return Ok(None);
            }
            other => return Err(format!("{other}: no such option")),
        }
    }
    Ok(Some(options))
}

fn size(value: &str) -> Result<u16, String> {
    let n: u16 = value.parse().map_err(|_| format!("{value}: not a size"))?;
    match n {
        20..=2000 => Ok(n),
        _ => Err("a size is 20 to 2000".to_string()),
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprint!("ro2ibtop: {why}\n{USAGE}");
            return ExitCode::from(3);
        }
    };
    match run(&options) {
        Ok(worst) if options.check => match worst {
            Level::Fine | Level::Note => ExitCode::SUCCESS,
            Level::Warn => ExitCode::from(1),
            Level::Bad => ExitCode::from(2),
        },
        Ok(_) => ExitCode::SUCCESS,
        // The reader of the pipe has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ro2ibtop: {e}");
            ExitCode::from(3)
        }
    }
}

fn run(options: &Options) -> io::Result<Level> {
    let mut app = App::default();
    app.events = options.events;
    let mut counters = Counters::default();
    if let Some(path) = &options.snapshot {
        let named = |e| io::Error::new(io::Error::kind(&e), format!("{}: {e}", path.display()));
        for sample in source::saved(path).map_err(named)? {
            app.take(sample);
        }
        app.title = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into();
    } else {
        app.title = "this node".to_string();
        app.take(look(&options.root, &mut counters)?);
        if options.mode != Mode::Live {
            // Rates need two samples; one second is enough.
            thread::sleep(options.interval.min(Duration::from_secs(1)));
            app.take(look(&options.root, &mut counters)?);
        }
    }
    let text = match options.mode {
        Mode::Live => {
            live(&mut app, options, counters)?;
            return Ok(app.worst());
        }
        Mode::Once => lines(&screen(&app, options)?),
        Mode::Json => json::document(&app),
        Mode::Prometheus => prometheus::text(&app),
        Mode::Svg => svg::picture(&screen(&app, options)?),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(app.worst())
}

fn look(root: &Path, counters: &mut Counters) -> io::Result<ro2ibtop::model::Sample> {
    source::live(root, counters).map_err(|e| {
        let dir = root.join(source::DEBUGFS);
        let dir = dir.display();
        let why = match e.kind() {
            io::ErrorKind::PermissionDenied => format!("cannot read {dir}: only root may"),
            io::ErrorKind::NotFound => format!(
                "there is no {dir}: is the module loaded, and debugfs mounted (mount -t debugfs none /sys/kernel/debug)?"
            ),
            _ => format!("cannot read {dir}: {e}"),
        };
        io::Error::new(e.kind(), why)
    })
}

/// Draws the screen, as high as its content.
fn screen(app: &App, options: &Options) -> io::Result<Buffer> {
    let rows = app.height(options.width).min(options.rows).max(10);
    let mut terminal = Terminal::new(TestBackend::new(options.width, rows))?;
    terminal.draw(|frame| app.draw(frame))?;
    Ok(terminal.backend().buffer().clone())
}

fn lines(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width)
            .map(|x| buffer[(x, y)].symbol())
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn live(app: &mut App, options: &Options, counters: Counters) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        let why = "no terminal; use --once, --json or --prometheus";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    app.chosen = Some(0);
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, app, options, counters);
    ratatui::try_restore()?;
    result
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    options: &Options,
    mut counters: Counters,
) -> io::Result<()> {
    let mut looked = Instant::now();
    loop {
        terminal.draw(|frame| app.draw(frame))?;
        let left = options.interval.saturating_sub(looked.elapsed());
        if event::poll(left.max(Duration::from_millis(20)))? {
            let page = isize::from(i16::try_from(terminal.size()?.height / 2).unwrap_or(10));
            if let Event::Key(key) = event::read()? {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    _ if key.kind == KeyEventKind::Release => {}
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if control => return Ok(()),
                    KeyCode::Char('s') => app.reorder(),
                    KeyCode::Char('e') => app.events = !app.events,
                    KeyCode::Char('p') | KeyCode::Char(' ') => app.paused = !app.paused,
                    KeyCode::Down | KeyCode::Char('j') => app.choose(1),
                    KeyCode::Up | KeyCode::Char('k') => app.choose(-1),
                    KeyCode::PageDown => app.choose(page),
                    KeyCode::PageUp => app.choose(-page),
                    KeyCode::Home => app.chosen = Some(0),
                    KeyCode::End => app.choose(isize::MAX),
                    _ => {}
                }
            }
        }
        if looked.elapsed() >= options.interval && !app.paused {
            looked = Instant::now();
            if options.snapshot.is_none() {
                match look(&options.root, &mut counters) {
                    Ok(sample) => app.take(sample),
                    Err(e) => app.error = Some(e.to_string()),
                }
            }
        }
    }
}
