package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// show writes the files that show the world and the notices to processes of the job.
func (a *Agent) show() {
	a.shown.Lock()
	defer a.shown.Unlock()
	a.mu.Lock()
	members, notices := a.world.Members, a.allNotices()
	a.mu.Unlock()
	if err := errors.Join(a.writeHostfile(members), a.writeNoticeFile(notices)); err != nil {
		a.log.Error("show the world", "error", err)
	}
}

// writeHostfile lists the members as mpirun and DeepSpeed read it: "address slots=n".
func (a *Agent) writeHostfile(members []*control.Member) error {
	var b bytes.Buffer
	for _, m := range members {
		fmt.Fprintf(&b, "%s slots=%d\n", m.Address, m.Procs)
	}
	return replaceFile(a.path("run/hostfile"), b.Bytes())
}

// writeNoticeFile shows the notices there are, this node's first; without any there is no file.
func (a *Agent) writeNoticeFile(notices []noticeView) error {
	file := a.path("run/notice.json")
	if len(notices) == 0 {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(struct {
		noticeView
		Notices []noticeView `json:"notices"`
	}{notices[0], notices})
	if err != nil {
		return err
	}
	return replaceFile(file, append(b, '\n'))
}

// noticeView is a notice as the API and the notice file show it.
type noticeView struct {
	Node     string    `json:"node"`
	Slot     uint32    `json:"slot"`
	Own      bool      `json:"own"` // of the node that reads it
	Deadline time.Time `json:"deadline"`
	Source   string    `json:"source"`
}

// allNotices are those of this node, seen by itself, and those the head told of. Callers hold mu.
func (a *Agent) allNotices() []noticeView {
	var views []noticeView
	for _, id := range slices.Sorted(maps.Keys(a.notices)) {
		n := a.notices[id]
		views = append(views, noticeView{
			Node: a.o.Join.Node, Slot: a.o.Join.Slot, Own: true,
			Deadline: time.Unix(0, n.DeadlineUnixNs).UTC(), Source: n.Source,
		})
	}
	for _, n := range a.world.Notices {
		if n.Node == a.o.Join.Node && len(a.notices) > 0 {
			continue
		}
		views = append(views, noticeView{
			Node: n.Node, Slot: n.Slot, Own: n.Node == a.o.Join.Node,
			Deadline: time.Unix(0, n.DeadlineUnixNs).UTC(), Source: n.Source,
		})
	}
	return views
}

// replaceFile writes a file that appears, whole, by rename.
func replaceFile(file string, data []byte) error {
	temp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, file)
}
