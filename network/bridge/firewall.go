package bridge

import (
	"context"
	"os/exec"
	"strings"
)

// Droppers returns the chains of other programs that drop forwarded packets by their policy, as
// "TABLE CHAIN" with the table's family, where no rule of the table names the bridge. Docker and ufw
// make such chains, and an accept elsewhere does not overrule a drop (nft(8), "Statements"). It finds
// neither what ends with a rule that rejects the rest, as firewalld's, nor rules of iptables-legacy,
// and does not see that a rule for addresses or for "crisp*" lets the pods through.
func Droppers(ctx context.Context, bridge string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "ruleset").Output()
	if err != nil {
		return nil, err
	}
	var list, inTable []string
	var table, chain string
	named := false // a rule of the table names the bridge
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, "table "):
			table = strings.TrimSuffix(strings.TrimPrefix(line, "table "), " {")
			inTable, named = nil, false
		case line == "}" && !named:
			list = append(list, inTable...)
		case len(fields) == 3 && fields[0] == "chain":
			chain = fields[1]
		case strings.Contains(line, " hook forward ") && strings.Contains(line, "policy drop;"):
			inTable = append(inTable, table+" "+chain)
		case strings.Contains(line, `"`+bridge+`"`):
			named = true
		}
	}
	return list, nil
}
