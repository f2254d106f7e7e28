package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// maxLine is how much of a line of a plugin's output is kept, in bytes; maxAttrs how many attributes of a log line.
const (
	maxLine  = 64 << 10
	maxAttrs = 32
)

// hclogger lets go-plugin log to log what is at least least; demote makes that debugging, because the host itself reports what matters.
func hclogger(log *slog.Logger, least hclog.Level, demote bool) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off}) // sinks get all levels
	l.RegisterSink(sink{log: log, least: least, demote: demote})
	return l
}

type sink struct {
	log    *slog.Logger
	least  hclog.Level
	demote bool
}

// Accept implements [hclog.SinkAdapter].
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level < s.least {
		return
	}
	to := slog.LevelDebug
	switch {
	case s.demote:
	case level == hclog.Info:
		to = slog.LevelInfo
	case level == hclog.Warn:
		to = slog.LevelWarn
	case level == hclog.Error:
		to = slog.LevelError
	}
	var attrs []slog.Attr
	for i := 0; i+1 < len(args); i += 2 {
		attrs = append(attrs, slog.String(clean(fmt.Sprint(args[i])), clean(fmt.Sprint(args[i+1]))))
	}
	s.log.LogAttrs(context.Background(), to, clean(msg), attrs...)
}

// journalist turns a plugin's stderr into log lines and remembers what it said last.
type journalist struct {
	log   *slog.Logger
	mu    sync.Mutex // guards last and panic
	last  string
	panic string
}

// line logs one line: a JSON object with level and msg as those say, any other as debugging.
func (j *journalist) line(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	level, msg, attrs := slog.LevelDebug, "", []slog.Attr(nil)
	var entry map[string]any
	if text[0] == '{' && json.Unmarshal(text, &entry) == nil {
		msg, _ = entry["msg"].(string)
		name, _ := entry["level"].(string)
		if level.UnmarshalText([]byte(name)) != nil {
			level = slog.LevelDebug
		}
	}
	if msg == "" {
		msg, entry = string(text), nil
	}
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if key != "msg" && key != "level" && key != "time" && len(attrs) < maxAttrs {
			attrs = append(attrs, slog.String(clean(key), clean(fmt.Sprint(entry[key]))))
		}
	}
	msg = clean(msg)
	j.mu.Lock()
	if j.last = msg; j.panic == "" && (strings.HasPrefix(msg, "panic: ") || strings.HasPrefix(msg, "fatal error: ")) {
		j.panic = msg // the trace follows
	}
	j.mu.Unlock()
	j.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// lastWords is the most telling line: of a panic the first, else the last.
func (j *journalist) lastWords() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.panic != "" {
		return j.panic
	}
	return j.last
}

// lines cuts what is written to it into lines of at most maxLine bytes and drops the rest of longer ones. One writer at a time.
type lines struct {
	emit func(line []byte)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		l.part = append(l.part, line[:min(len(line), maxLine-len(l.part))]...)
		if !ended {
			return n, nil
		}
		l.flush()
		p = rest
	}
}

// flush emits the line begun.
func (l *lines) flush() {
	line := l.part
	l.part = nil
	l.emit(line)
}
