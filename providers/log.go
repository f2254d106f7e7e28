package providers

import (
	"context"
	"log/slog"
	"time"
)

// Log writes one line per call: op, run, counts, duration and code. Configuration, keys, tags and messages of errors are
// left out, because any of them may hold what is secret. Errors are warnings, calls that change something information,
// the rest is for debugging.
func Log(p Provider, logger *slog.Logger) Provider {
	return &around{next: p, call: func(ctx context.Context, c *call, do func(context.Context) error) error {
		began := time.Now()
		err := do(ctx)
		level := slog.LevelDebug
		switch c.op {
		case "create", "delete", "update", "preempt":
			level = slog.LevelInfo
		}
		attrs := []slog.Attr{slog.String("op", c.op)}
		if c.run != "" {
			attrs = append(attrs, slog.String("run", c.run))
		}
		if c.want >= 0 {
			attrs = append(attrs, slog.Int("want", c.want))
		}
		if c.got >= 0 {
			attrs = append(attrs, slog.Int("count", c.got))
		}
		attrs = append(attrs, slog.Duration("duration", time.Since(began)))
		if err != nil {
			level = slog.LevelWarn
			attrs = append(attrs, slog.String("code", string(CodeOf(err))))
		}
		logger.LogAttrs(ctx, level, "provider call", attrs...)
		return err
	}}
}
