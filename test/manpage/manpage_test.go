package manpage_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/crisp-cri/crisp/test/manpage"
)

func TestMan(t *testing.T) {
	root := &cobra.Command{Use: "prog", Short: "a program"}
	remove := &cobra.Command{Use: "rm [-a] NAME", Short: "remove it", ValidArgs: []string{"x", "y"}, Run: func(*cobra.Command, []string) {}}
	remove.Flags().BoolP("all", "a", false, "don't choose")
	root.AddCommand(remove)
	page := manpage.Man(root, 8, manpage.Section{Title: "FILES", Text: ".hidden is no macro\n\n  shown - as it is"})
	for _, want := range []string{
		`.TH PROG 8`, ".B prog\nrm [\\-a] NAME\n", ".SS rm\nRemove it.\nArguments: x, y.\n", `\fB\-a, \-\-all\fR`,
		"\n\\&.hidden is no macro\n", ".nf\n  shown \\- as it is\n.fi\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if _, err := exec.LookPath("man"); err != nil {
		return
	}
	file := filepath.Join(t.TempDir(), "prog.8")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("man", "--warnings", "-l", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("%v\n%s", err, out)
	}
}
