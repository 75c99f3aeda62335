// SPDX-License-Identifier: GPL-2.0

//! Rates as small pictures.

mod common;

use ro2ibtop::{
    history::LENGTH,
    model::{
        Conn,
        Counts,
        Ni,
        Sample, //
    },
    view::App, //
};

/// Returns a view of a connection that had sent and received these numbers of messages at each of these times.
fn moved(looks: &[(f64, u64, u64)]) -> App {
    let mut app = App::default();
    for (time, tx_msgs, rx_msgs) in looks {
        let conn = Conn {
            peer: "10.0.0.2@o2ib".into(),
            state: "Established".into(),
            number: 1,
            counts: Counts {
                tx_msgs: *tx_msgs,
                rx_msgs: *rx_msgs,
                ..Counts::default()
            },
            ..Conn::default()
        };
        app.take(Sample {
            time: *time,
            nis: vec![Ni {
                nid: "10.0.0.1@o2ib".into(),
                device: "mlx5_0".into(),
                conns: vec![conn],
                ..Ni::default()
            }],
            ..Sample::default()
        });
    }
    app
}

/// Returns a view with a sample each second, between which these numbers of messages were sent.
fn sent(rates: impl IntoIterator<Item = u64>) -> App {
    let mut looks = vec![(1000.0, 7, 3)];
    for rate in rates {
        let (time, tx, rx) = looks[looks.len() - 1];
        looks.push((time + 1.0, tx + rate, rx));
    }
    moved(&looks)
}

/// Returns the picture of the connection, which is also that of the NI because the NI has no other connection.
fn picture(app: &App, bars: usize) -> String {
    let ni = &app.sample.nis[0];
    let drawn = app.history.conn(ni, 0).unwrap().picture(bars);
    assert_eq!(app.history.ni(ni).unwrap().picture(bars), drawn);
    drawn
}

#[test]
fn each_rate_has_its_height() {
    assert_eq!(picture(&sent(0..=8), 9), " ▁▂▃▄▅▆▇█");
    // Rates between two bars are rounded up, so that any movement is visible.
    assert_eq!(picture(&sent([1, 1_000_000, 125_001, 0]), 4), "▁█▂ ");
    assert_eq!(picture(&sent([5; 6]), 6), "██████");
}

#[test]
fn idle_history_is_blank() {
    assert_eq!(picture(&sent([0; 12]), 8), " ".repeat(8));
    // One sample has no rate.
    assert_eq!(picture(&sent([]), 8), " ".repeat(8));
    assert_eq!(picture(&sent([4]), 8), "       █");
    assert_eq!(picture(&sent([4]), 0), "");
}

#[test]
fn the_newest_is_at_the_right_and_the_oldest_goes() {
    let rates = (1..=LENGTH as u64 + 5).chain([0]);
    let app = sent(rates);
    let all = picture(&app, LENGTH);
    assert_eq!(all.chars().count(), LENGTH);
    assert!(all.ends_with("█ ") && !all.starts_with(' '), "{all}");
    // There are no more bars than known rates.
    assert_eq!(picture(&app, LENGTH + 7), all);
    // The scale is that of the visible rates.
    let app = sent([1000, 1, 2, 4, 8]);
    assert_eq!(picture(&app, 5), "█▁▁▁▁");
    assert_eq!(picture(&app, 4), "▁▂▄█");
}

#[test]
fn rates_are_of_both_ways_and_of_a_second() {
    let both = moved(&[(1.0, 0, 0), (2.0, 4, 4), (4.0, 12, 4), (4.5, 12, 8)]);
    assert_eq!(picture(&both, 3), "█▄█");
    // A counter that fell belongs to a new connection, and a second sample at the same time adds no rate.
    let again = moved(&[(1.0, 50, 0), (2.0, 54, 0), (3.0, 0, 0), (4.0, 4, 0)]);
    assert_eq!(picture(&again, 3), "█ █");
    let twice = moved(&[(1.0, 0, 0), (2.0, 4, 0), (2.0, 4, 0)]);
    assert_eq!(picture(&twice, 2), "██");
}

/// Checks that a wide screen has a longer history, as long as the verdict keeps its space.
#[test]
fn a_wide_screen_has_more_of_it() {
    let app = sent([3; LENGTH]);
    let bars = |width| {
        let lines = common::lines(&common::screen(&app, width, 20));
        let of = |nid: &str| {
            let line = lines.iter().find(|line| line.starts_with(nid)).unwrap();
            assert!(line.ends_with(" ok"), "{line}");
            line.matches('█').count()
        };
        let (ni, conn) = (of("10.0.0.1@"), of("10.0.0.2@"));
        assert_eq!(ni, conn);
        // The heading stands above its column.
        let heading = lines.iter().find(|line| line.starts_with("peer ")).unwrap();
        let line = lines.iter().find(|l| l.starts_with("10.0.0.2@")).unwrap();
        let at = |of: &str, what: &str| of.find(what).map(|n| of[..n].chars().count());
        assert_eq!(at(heading, "verdict"), at(line, "ok"));
        conn
    };
    assert_eq!([bars(140), bars(160), bars(200)], [8, 8, 8]);
    assert_eq!([bars(216), bars(248), bars(400)], [16, LENGTH, LENGTH]);
}

/// Checks the failover of a bond: the other device has counted for a long time.
#[test]
fn counters_of_two_devices_are_not_compared() {
    let mut app = App::default();
    let mut retries = |time, device: &str, n| {
        app.take(Sample {
            time,
            nis: vec![Ni {
                nid: "10.0.0.1@o2ib".into(),
                device: device.into(),
                hardware: [("out_of_sequence".to_string(), n)].into(),
                ..Ni::default()
            }],
            ..Sample::default()
        });
        app.history.hardware(&app.sample.nis[0], "out_of_sequence")
    };
    assert_eq!(retries(1.0, "mlx5_0", 3), 0);
    assert_eq!(retries(2.0, "mlx5_0", 5), 2);
    assert_eq!(retries(3.0, "mlx5_1", 900), 0);
    assert_eq!(retries(4.0, "mlx5_1", 907), 7);
    // The bond fails back.
    assert_eq!(retries(5.0, "mlx5_0", 6), 0);
    assert_eq!(retries(6.0, "mlx5_0", 6), 0);
}
