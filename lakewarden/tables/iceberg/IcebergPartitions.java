// Drops partitions from a table, inside the driver's JVM. Compiled by Janino like IcebergBridge.java; the same
// rules apply.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFiles;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;

public final class IcebergPartitions {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * One atomic `delete` snapshot that removes every file the scan found in these partitions. On every attempt,
   * the library checks that each of these files still exists. Files that were added since the scan are not
   * examined, so they stay.
   */
  public void drop(Table table, IcebergBridge.Scan scan, String partitionsJson, String summaryJson) throws Exception {
    int[] ids = (int[]) JSON.readValue(partitionsJson, int[].class);
    Set wanted = new HashSet();
    for (int i = 0; i < ids.length; i++) {
      wanted.add(Integer.valueOf(ids[i]));
    }
    DeleteFiles delete = table.newDelete().validateFilesExist();
    Iterator files = scan.partitionOf.entrySet().iterator();
    while (files.hasNext()) {
      Map.Entry each = (Map.Entry) files.next();
      if (wanted.contains(each.getValue())) {
        delete.deleteFile((DataFile) ((FileScanTask) scan.tasks.get(each.getKey())).file());
      }
    }
    JsonNode summary = JSON.readTree(summaryJson);
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      delete.set(key, ((JsonNode) summary.get(key)).asText());
    }
    delete.commit();
  }
}
