package train

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	reportTimeout = time.Second
	reportLinger  = 500 * time.Millisecond // at the end, for what is still unsent
	reportsQueued = 8
)

// report is the body of POST /v1/progress.
type report struct {
	Step       int                `json:"step"`
	Checkpoint string             `json:"checkpoint,omitempty"` // path, where one was just saved
	Numbers    map[string]float64 `json:"numbers,omitempty"`
}

// reporter tells the node's agent how far training is. It is a courtesy: a
// report that cannot be sent is dropped and training never waits for one.
type reporter struct {
	url, token string
	queue      chan report
	client     http.Client
	cancel     context.CancelFunc
	done       sync.WaitGroup
}

// startReporter returns nil, which is usable, where api is empty. stop ends it.
func startReporter(ctx context.Context, api, token string) *reporter {
	if api == "" {
		return nil
	}
	// Outlives an order to stop: the last report is of the checkpoint made for it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &reporter{
		url:    api + "/v1/progress",
		token:  token,
		queue:  make(chan report, reportsQueued),
		client: http.Client{Timeout: reportTimeout, Transport: &http.Transport{}}, // no proxy: it is on this node
		cancel: cancel,
	}
	r.done.Go(func() {
		for report := range r.queue {
			r.post(ctx, report)
		}
	})
	return r
}

func (r *reporter) report(what report) {
	if r == nil {
		return
	}
	select {
	case r.queue <- what:
	default:
	}
}

func (r *reporter) stop() {
	if r == nil {
		return
	}
	close(r.queue)
	linger := time.AfterFunc(reportLinger, r.cancel)
	r.done.Wait()
	linger.Stop()
	r.cancel()
	r.client.CloseIdleConnections()
}

func (r *reporter) post(ctx context.Context, what report) {
	body, err := json.Marshal(what)
	if err != nil {
		return // a loss that is not a number has no JSON
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+r.token)
	response, err := r.client.Do(request)
	if err != nil {
		return
	}
	response.Body.Close()
}
