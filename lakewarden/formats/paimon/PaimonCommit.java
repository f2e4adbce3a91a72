package lakewarden;

import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.TableCommitImpl;

/** One atomic commit with lineage in the snapshot's properties. */
public class PaimonCommit {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String USER = "lakewarden";

  /** Through a copy that only writes: any other commit also expires snapshots by the table's options. */
  public void commit(FileStoreTable table, List messages, String properties, long identifier) throws Exception {
    Map only = Collections.singletonMap("write-only", "true");
    TableCommitImpl commit = ((FileStoreTable) table.copy(only)).newCommit(USER);
    try {
      ManifestCommittable committable = new ManifestCommittable(identifier);
      for (Iterator each = messages.iterator(); each.hasNext(); ) {
        committable.addFileCommittable((CommitMessage) each.next());
      }
      Map told = (Map) JSON.readValue(properties, Map.class);
      for (Iterator each = told.entrySet().iterator(); each.hasNext(); ) {
        Map.Entry entry = (Map.Entry) each.next();
        committable.addProperty((String) entry.getKey(), (String) entry.getValue());
      }
      commit.commit(committable);
    } finally {
      commit.close();
    }
  }
}
