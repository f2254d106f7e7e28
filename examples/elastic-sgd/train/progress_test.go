package train

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// silent is an agent that takes requests and never answers.
type silent struct{}

func (silent) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// Each report alone may take its timeout; the queue of them, when training is over, may not.
func TestReportsLingerNoLongerThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReporter(t.Context(), "http://agent", "")
		r.client.Transport = silent{}
		begun := time.Now()
		for step := range 3 * reportsQueued {
			r.report(report{Step: step})
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("training waited %v for reports", took)
		}
		r.stop()
		if took := time.Since(begun); took > reportLinger {
			t.Errorf("the end waited %v for reports, want %v at most", took, reportLinger)
		}
	})
}
