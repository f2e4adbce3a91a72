package lakewarden;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.paimon.manifest.ManifestFileMeta;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;

/** Lists the manifests of a snapshot, and merges many manifests into few. */
public class PaimonManifests {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Every data manifest of the snapshot: [[name, bytes], ...]. */
  public String manifests(FileStoreTable table, long snapshot) throws Exception {
    List metas =
        table.store().manifestListFactory().create().readDataManifests(table.snapshotManager().snapshot(snapshot));
    List found = new ArrayList();
    for (Iterator each = metas.iterator(); each.hasNext(); ) {
      ManifestFileMeta meta = (ManifestFileMeta) each.next();
      List row = new ArrayList();
      row.add(meta.fileName());
      row.add(Long.valueOf(meta.fileSize()));
      found.add(row);
    }
    return JSON.writeValueAsString(found);
  }

  /**
   * Options with which a commit of no files merges every manifest it finds. Paimon's own compactManifests
   * copies the properties of the previous snapshot, which would name the wrong author of the new one. Manifests
   * that other writers commit in the meantime are merged too: each attempt starts from the newest snapshot.
   */
  public Map folding(long targetBytes) {
    Map options = new HashMap();
    options.put("manifest.target-file-size", targetBytes + " b");
    options.put("manifest.merge-min-count", "1");
    options.put("manifest.full-compaction-threshold-size", "1 b");
    return options;
  }
}
